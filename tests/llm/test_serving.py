"""The server: OpenAI's API, batches whose rows get what they get alone, and requests that are wrong, late or gone."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from polyrhythm import llm
from polyrhythm.llm.errors import PromptError
from polyrhythm.llm.serving import Busy, Engine, application, bodies
from polyrhythm.llm.serving.requests import Request
from polyrhythm.llm.serving.slots import STEPS, Slots

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    folder = llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1, eos_token_id=None)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return llm.load(folder, backend="numpy")


@pytest.fixture(scope="module")
def client(model: llm.Model) -> Iterator[TestClient]:
    with TestClient(application(model, "tiny", rows=4, waiting=8)) as made:
        yield made


def events(client: TestClient, path: str, body: dict[str, Any]) -> list[Any]:
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_chat_is_what_the_model_answers(client: TestClient, model: llm.Model) -> None:
    found = client.post("/v1/chat/completions", json=HELLO).json()
    expected = model.generate("u:hello;a:", 6)
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["finish_reason"] == "length"
    assert found["usage"] == {"prompt_tokens": 10, "completion_tokens": 6, "total_tokens": 16}
    assert (found["object"], found["model"]) == ("chat.completion", "tiny")
    chunks = events(client, "/v1/chat/completions", {**HELLO, "stream_options": {"include_usage": True}})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == expected.text
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == found["usage"]


def test_completions_of_texts_and_tokens(client: TestClient, model: llm.Model) -> None:
    body = {"prompt": ["ab", "xyz"], "max_tokens": 5, "temperature": 0, "logprobs": 2}
    found = client.post("/v1/completions", json=body).json()
    expected = [model.generate(prompt, 5, logprobs=2) for prompt in ("ab", "xyz")]
    assert [choice["text"] for choice in found["choices"]] == [one.text for one in expected]
    own = [entry.logprob for entry in expected[0].logprobs or ()]
    assert found["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx(own, abs=1e-5)
    tokens = client.post("/v1/completions", json={"prompt": [97, 98], "max_tokens": 5, "temperature": 0}).json()
    assert tokens["choices"][0]["text"] == model.generate([97, 98], 5).text
    streamed = events(client, "/v1/completions", {"prompt": "ab", "max_tokens": 5, "temperature": 0})
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == expected[0].text


def test_samples_by_their_seed(client: TestClient, model: llm.Model) -> None:
    body = {"prompt": "ab", "max_tokens": 5, "temperature": 1.3, "seed": 5, "n": 2, "stop": ["\u0100"]}
    found = client.post("/v1/completions", json=body).json()
    expected = model.generate("ab", 5, temperature=1.3, seed=5, n=2, stop="\u0100")
    assert [choice["text"] for choice in found["choices"]] == [one.text for one in expected]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat/completions", b"{", "not JSON"),
        ("chat/completions", b"[1]", "not a JSON object"),
        ("chat/completions", {}, "messages must be"),
        ("chat/completions", {"messages": ["hi"]}, "needs a role"),
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, "must be text"),
        ("chat/completions", {**HELLO, "temperature": "hot"}, "a temperature of hot"),
        ("chat/completions", {**HELLO, "max_tokens": -1}, "positive integer"),
        ("chat/completions", {**HELLO, "max_tokens": "many"}, "positive integer"),
        ("chat/completions", {**HELLO, "frequency": 1}, "frequency is not known"),
        ("chat/completions", {**HELLO, "n": 99}, "more than 16"),
        ("chat/completions", {**HELLO, "stream": "yes"}, "stream must be"),
        ("chat/completions", {**HELLO, "logit_bias": [1]}, "logit_bias must be"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "which is no character"),
        ("completions", b'{"prompt": "\\udc00"}', "which is no character"),
        ("completions", {}, "a prompt is needed"),
        ("completions", {"prompt": []}, "an empty prompt"),
        ("completions", {"prompt": {"a": 1}}, "a mapping"),
        ("completions", {"prompt": [1.5]}, "neither text"),
        ("completions", {"prompt": [99999]}, "the token 99999"),
        ("completions", {"prompt": "a", "echo": True}, "echo is not supported"),
        ("completions", {"prompt": "a" * 3000}, "more than the model reads"),
    ],
)
def test_bodies_that_are_refused(client: TestClient, path: str, body: Any, message: str) -> None:
    sent: Any = {"content": body} if isinstance(body, bytes) else {"json": body}
    response = client.post(f"/v1/{path}", **sent)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_embeddings(client: TestClient, model: llm.Model) -> None:
    found = client.post("/v1/embeddings", json={"input": ["hello", "other"], "model": "tiny"}).json()
    wanted = model.embed(["hello", "other"])
    np.testing.assert_allclose([entry["embedding"] for entry in found["data"]], wanted, atol=1e-6)
    assert found["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
    packed = client.post("/v1/embeddings", json={"input": "hello", "encoding_format": "base64"}).json()
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "f4"), wanted[0])
    wrong: list[Any] = [{}, {"input": []}, {"input": "a", "dimensions": 3}, {"input": [[]]}, {"input": {"a": 1}}]
    for body in wrong:
        assert client.post("/v1/embeddings", json=body).status_code == 400


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"json_schema": {"type": "object"}}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}},
            {"json_schema": {"type": "null"}},
        ),
    ],
)
def test_response_formats(model: llm.Model, given: Any, options: Any) -> None:
    asked = bodies.chat(model, {**HELLO, "response_format": given})
    assert {key: value for key, value in asked.options.items() if key == "json_schema"} == options


def test_response_formats_that_are_refused(client: TestClient) -> None:
    for given in ({}, "json", {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}):
        answer = client.post("/v1/chat/completions", json={**HELLO, "response_format": given})
        assert answer.status_code == 400
        assert "response_format" in answer.json()["error"]["message"]


def test_a_key_that_requests_must_bring(model: llm.Model) -> None:
    with TestClient(application(model, "tiny", api_key="secret")) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.post("/v1/chat/completions", json=HELLO).status_code == 401
        right = {"authorization": "Bearer secret"}
        assert client.get("/v1/models", headers=right).json()["data"][0]["id"] == "tiny"
        assert client.get("/health").json() == {"status": "ok"}


def test_metrics_and_the_page(client: TestClient) -> None:
    client.post("/v1/chat/completions", json=HELLO)
    lines = client.get("/metrics").text.splitlines()
    counts = dict(line.split() for line in lines if not line.startswith("#"))
    assert int(counts["polyrhythm_finished_total"]) >= 1
    assert counts["polyrhythm_queued"] == "0"
    assert "tiny" in client.get("/").text


class Slow:
    """A model that waits for permission before each step, so that a test decides what happens when."""

    def __init__(self, model: llm.Model) -> None:
        self.model, self.steps = model, threading.Semaphore(0)
        self.batches: list[int] = []

    def stream(self, rows: Any, limits: Any, chunk: int, **options: Any) -> Iterator[Any]:
        self.batches.append(len(rows))
        for step in self.model.stream(rows, limits, chunk, **options):
            self.steps.acquire()
            yield step


def collect(engine: Engine, tokens: list[int], count: int, **rest: Any) -> tuple[Request, list[Any]]:
    found: list[Any] = []
    request = Request(tokens, count, {}, found.append, **rest)
    engine.submit(request)
    return request, found


def wait(condition: Any) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_requests_that_wait_are_one_batch_and_get_what_they_get_alone(model: llm.Model) -> None:
    slow = Slow(model)
    engine = Engine(slow, rows=4, waiting=8, context=0)  # type: ignore[arg-type]
    first = collect(engine, [1, 2], 3)
    wait(lambda: engine.running == 1)
    asked = [([5, 6, 7], 4), ([9], 7), ([20, 21], 2)]
    later = [collect(engine, *each) for each in asked]
    slow.steps.release(100)
    wait(lambda: all(found and found[-1] is None for _, found in [first, *later]))
    for (tokens, count), (_, found) in zip(asked, later, strict=True):
        pieces = [piece.token for _, piece in found[:-1]]
        assert pieces == model.generate(tokens, count).tokens.tolist()
    assert slow.batches == [1, 4]  # three requests, filled up to a power of two
    assert (engine.counts.finished, engine.counts.completion_tokens) == (4, 3 + 4 + 7 + 2)
    engine.close()


def test_requests_that_are_cancelled_late_or_too_many(model: llm.Model) -> None:
    slow = Slow(model)
    engine = Engine(slow, rows=4, waiting=2, context=0)  # type: ignore[arg-type]
    gone, heard = collect(engine, [1, 2], 50)
    wait(lambda: engine.running == 1)
    _, late = collect(engine, [5], 5, deadline=time.monotonic() - 1)
    _, fine = collect(engine, [5], 5)
    with pytest.raises(Busy):
        collect(engine, [6], 5)
    slow.steps.release(2)
    wait(lambda: len(heard) >= 1)
    gone.cancelled = True
    slow.steps.release(100)
    wait(lambda: fine and fine[-1] is None)
    assert len(heard) < 50
    assert isinstance(late[-1], TimeoutError)
    assert [piece.token for _, piece in fine[:-1]] == model.generate([5], 5).tokens.tolist()
    assert engine.counts.rejected == 1
    engine.close()
    with pytest.raises(Busy):
        collect(engine, [6], 5)


def test_an_error_of_one_batch_is_told_to_it_alone(tmp_path: Path) -> None:
    model = llm.load(llm.write_random(tmp_path, "gpt2", n_positions=8, n_layer=1, eos_token_id=None), backend="numpy")
    engine = Engine(model)
    _, wrong = collect(engine, [1] * 4, 40)
    wait(lambda: wrong)
    assert "positions" in str(wrong[-1])
    _, fine = collect(engine, [1, 2], 3)
    wait(lambda: fine and fine[-1] is None)
    engine.close()


def test_a_failure_inside_is_an_event_of_the_stream(model: llm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(slots: Slots) -> Any:
        raise RuntimeError("a secret path")

    with TestClient(application(model, "tiny", rows=2)) as client:
        body = {"prompt": "ab", "max_tokens": 3, "temperature": 0, "stream": True}
        with monkeypatch.context() as patched:
            patched.setattr(Slots, "step", failing)
            with client.stream("POST", "/v1/completions", json=body) as response:
                (line,) = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert json.loads(line)["error"]["message"] == "the server failed to answer"
        assert len(events(client, "/v1/completions", body)) == 3


def test_closing_refuses_those_that_wait(model: llm.Model) -> None:
    slow = Slow(model)
    engine = Engine(slow, rows=1, context=0)  # type: ignore[arg-type]
    _, first = collect(engine, [1], 2)
    wait(lambda: engine.running == 1)
    _, second = collect(engine, [2], 2)
    threading.Timer(0.2, slow.steps.release, [100]).start()  # closing empties the queue, then waits for what runs
    engine.close()
    assert first[-1] is None
    assert isinstance(second[-1], Busy)


def test_a_number_of_tokens_for_each_prompt(model: llm.Model) -> None:
    prompts = [[1, 2, 3], [4], [5, 6]]
    found = model.generate(prompts, [2, 6, 4])
    expected = [model.generate(prompt, count).tokens.tolist() for prompt, count in zip(prompts, (2, 6, 4), strict=True)]
    assert [one.tokens.tolist() for one in found] == expected


def test_texts_begin_and_end_in_slots_at_steps_of_their_own(model: llm.Model) -> None:
    """Each gets what it gets alone, whatever was in its slot before, and nobody waits for the longest."""
    engine = Engine(model, rows=3, context=48)
    rng = np.random.default_rng(0)
    asked = [(rng.integers(0, 256, rng.integers(1, 9)).tolist(), int(rng.integers(1, 20))) for _ in range(12)]
    found = [collect(engine, *each)[1] for each in asked]
    wait(lambda: all(heard and heard[-1] is None for heard in found))
    for (tokens, count), heard in zip(asked, found, strict=True):
        assert [piece.token for _, piece in heard[:-1]] == model.generate(tokens, count).tokens.tolist()
        assert "".join(piece.text for _, piece in heard[:-1]) == model.generate(tokens, count).text
    assert engine.counts.batches == 0
    # Three at a time, one step for each token of prompt and text: far fewer steps than texts one after the other.
    total = sum(len(tokens) + count for tokens, count in asked)
    assert engine.counts.steps < total / 2
    engine.close()


def test_what_is_not_for_slots_runs_when_they_are_empty(model: llm.Model) -> None:
    engine = Engine(model, rows=2, context=32)
    _, first = collect(engine, [1, 2], 20)
    other: list[Any] = []
    engine.submit(Request([3], 4, {"temperature": 0.7, "seed": 1, "processors": [lambda x, *_: x * 2]}, other.append))
    _, long = collect(engine, list(range(30)), 10)
    _, last = collect(engine, [5], 3)
    _, wrong = collect_with(engine, [5], 3, {"top_k": 0})
    _, schema = collect_with(engine, [5], 3, {"json_schema": {"type": "nothing"}, "stop_token_ids": [0]})
    heard = [first, other, long, last]
    wait(lambda: all(h and h[-1] is None for h in heard) and wrong and schema)
    assert isinstance(schema[-1], PromptError)
    drawn = model.generate([3], 4, temperature=0.35, seed=1).tokens.tolist()
    assert [piece.token for _, piece in other[:-1]] == drawn
    assert [piece.token for _, piece in long[:-1]] == model.generate(list(range(30)), 10).tokens.tolist()
    assert [piece.token for _, piece in last[:-1]] == model.generate([5], 3).tokens.tolist()
    assert isinstance(wrong[-1], PromptError)
    engine.close()


def collect_with(engine: Engine, tokens: list[int], count: int, options: Any) -> tuple[Request, list[Any]]:
    found: list[Any] = []
    request = Request(tokens, count, options, found.append)
    engine.submit(request)
    return request, found


def test_slots_begin_another_stream_when_theirs_ends(model: llm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrhythm.llm.serving.slots.STEPS", 12)
    engine = Engine(model, rows=2, context=12)
    found = [collect(engine, [n], 6)[1] for n in range(1, 8)]
    wait(lambda: all(heard and heard[-1] is None for heard in found))
    for n, heard in enumerate(found, 1):
        assert [piece.token for _, piece in heard[:-1]] == model.generate([n], 6).tokens.tolist()
    engine.close()
    assert STEPS == 4096


def test_a_request_in_a_slot_that_goes_away_makes_room(model: llm.Model) -> None:
    engine = Engine(model, rows=1, context=512)
    gone, heard = collect(engine, [1, 2], 400)
    wait(lambda: len(heard) > 2)
    gone.cancelled = True
    _, found = collect(engine, [9], 3)
    wait(lambda: found and found[-1] is None)
    assert len(heard) < 400
    assert engine.counts.cancelled == 1
    assert [piece.token for _, piece in found[:-1]] == model.generate([9], 3).tokens.tolist()
    engine.close()


@pytest.mark.parametrize(
    ("family", "known"),
    [
        ("llama", True),
        ("qwen3", True),
        ("gemma3_text", True),
        ("mixtral", True),
        ("gpt2", False),
        ("mamba", False),
        ("bloom", False),
    ],
)
def test_families_that_have_slots(tmp_path: Path, family: str, known: bool) -> None:
    model = llm.load(llm.write_random(tmp_path, family, eos_token_id=None), backend="numpy")
    slots = Slots(model, 2, 64)
    assert slots.known is known
    if not known:
        return
    heard: dict[int, list[Any]] = {5: [], 9: []}
    late = Request([9, 3, 4], 6, {}, heard[9].append)
    assert slots.begin(Request([5], 9, {}, heard[5].append))
    for step in range(12):
        if step == 3:
            assert slots.begin(late)
        for request, _, piece in slots.step():
            request.deliver(piece.token)
    assert heard[5] == model.generate([5], 9).tokens.tolist()
    assert heard[9] == model.generate([9, 3, 4], 6).tokens.tolist()


@pytest.mark.slow
def test_many_requests_of_which_some_go_away(model: llm.Model) -> None:
    """Mixed lengths, a third of them cancelled midway, malformed ones between: the others get what they get alone."""
    rng = np.random.default_rng(0)
    engine = Engine(model, rows=8, waiting=16)
    asked = [(rng.integers(0, 256, rng.integers(1, 12)).tolist(), int(rng.integers(1, 24))) for _ in range(90)]
    found: dict[int, list[Any]] = {}
    gone = set(range(0, 90, 3))

    def ask(number: int) -> None:
        heard: list[Any] = []
        found[number] = heard
        options: dict[str, Any] = {"top_k": 0} if number % 15 == 1 else {}
        while True:
            try:
                request = Request(*asked[number], options, heard.append)
                engine.submit(request)
                break
            except Busy:
                time.sleep(0.01)
        if number in gone:
            wait(lambda: heard)
            request.cancelled = True
            return
        wait(lambda: heard and (heard[-1] is None or isinstance(heard[-1], Exception)))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(ask, range(90)))
    wait(lambda: not engine.running and not engine.queued)
    for number, (tokens, count) in enumerate(asked):
        if number % 15 == 1:
            assert isinstance(found[number][-1], PromptError)
        elif number not in gone:
            pieces = [piece.token for _, piece in found[number][:-1]]
            assert pieces == model.generate(tokens, count).tokens.tolist()
    counts = engine.counts
    assert counts.requests == counts.finished + counts.cancelled + counts.failed
    assert counts.batches < counts.requests, "nothing was batched"
    engine.close()
