"""The server against bodies that a generator makes of the API's parameters: right ones, wrong ones, and mixtures.

What is right is answered, what is wrong is refused in the form of an error of OpenAI's, and nothing is an error of the
server; after all of it a request gets the tokens that it gets alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from polyrhythm import llm
from polyrhythm.llm.serving import application

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
text = st.text(max_size=20)
content = text | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": text}), max_size=2)
message = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": content})
shared = {
    "max_tokens": st.integers(1, 5),
    "temperature": st.sampled_from([0, 0.0, 0.7, 2]),
    "top_p": st.sampled_from([0.1, 0.9, 1]),
    "n": st.integers(1, 2),
    "stop": text.filter(bool) | st.lists(text.filter(bool), max_size=3),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.integers(0, 255).map(str), st.floats(-100, 100), max_size=2),
    "seed": st.integers(0, 2**31),
    "user": text,
    "stream": st.booleans(),
}
required: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": st.lists(message, min_size=1, max_size=3)},
    "completions": {"prompt": text.filter(bool) | st.lists(st.integers(0, 255), min_size=1, max_size=6)},
    "embeddings": {"input": text.filter(bool) | st.lists(text.filter(bool), min_size=1, max_size=2)},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    folder = llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1, hidden_size=32)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return llm.load(folder, backend="numpy")


@pytest.fixture(scope="module")
def client(model: llm.Model) -> Iterator[TestClient]:
    with TestClient(application(model, "tiny", rows=2, waiting=8)) as made:
        yield made
        lone = made.post("/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 6, "temperature": 0}).json()
        assert lone["choices"][0]["text"] == model.generate([5, 6, 7], 6).text
        counts = dict(line.split() for line in made.get("/metrics").text.splitlines() if line[0] != "#")
        assert counts["polyrhythm_failed_total"] == "0"
        assert counts["polyrhythm_running"] == counts["polyrhythm_queued"] == "0"


def optional(path: str) -> dict[str, Any]:
    return {} if path == "embeddings" else shared


@pytest.mark.parametrize("path", sorted(required))
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_bodies_that_are_right_are_answered(client: TestClient, path: str, data: st.DataObject) -> None:
    body = data.draw(st.fixed_dictionaries(required[path], optional=optional(path)))
    body = {**body, "max_tokens": body.get("max_tokens", 3)} if path != "embeddings" else body
    response = client.post(f"/v1/{path}", json=body)
    assert response.status_code == 200, (body, response.text)
    if body.get("stream"):
        lines = [line for line in response.text.split("\n") if line]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        ends = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]]
        assert len(ends) == body.get("n", 1)
        assert set(ends) <= {"stop", "length"}
    elif path != "embeddings":
        found = response.json()
        assert [choice["index"] for choice in found["choices"]] == list(range(body.get("n", 1)))
        assert found["usage"]["completion_tokens"] <= body["max_tokens"] * body.get("n", 1)


@pytest.mark.parametrize("path", sorted(required))
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_bodies_of_anything_are_answered_or_refused(client: TestClient, path: str, data: st.DataObject) -> None:
    names = st.sampled_from([*required[path], *shared, "response_format", "logprobs", "tools", "x"])
    wrong = data.draw(st.dictionaries(names, anything, max_size=3))
    right = data.draw(st.fixed_dictionaries({}, optional={**required[path], **optional(path)}))
    body: Any = data.draw(st.sampled_from([{**right, **wrong}, {**right, **wrong}, wrong, [wrong]]))
    if isinstance(body, dict) and path != "embeddings" and not isinstance(body.get("max_tokens"), int):
        body = {**body, "max_tokens": 2}
    response = client.post(f"/v1/{path}", json=body)
    assert response.status_code in (200, 400), (body, response.text)
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"


@given(body=st.binary(max_size=40))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_bodies_that_are_no_json(client: TestClient, body: bytes) -> None:
    assert client.post("/v1/chat/completions", content=body).status_code == 400


def test_other_methods_and_paths(client: TestClient) -> None:
    assert client.get("/v1/chat/completions").status_code == 405
    assert client.post("/v1/nothing", json={}).status_code == 404
    assert client.post("/v1/completions", json={"prompt": "a"}, headers={"content-length": "x"}).status_code in (
        200,
        400,
    )
