"""Conversations that go on: each answer is that of the whole conversation, of which every token is read once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrhythm import llm
from polyrhythm.llm.errors import ContextLengthError, PromptError
from polyrhythm.llm.sampling import sampling
from tests.llm.gguf_files import smollm2

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"


def loaded(folder: Path, family: str = "llama", template: str = TEMPLATE, **sizes: Any) -> llm.Model:
    path = llm.write_random(folder, family, eos_token_id=None, **sizes)
    (path / "chat_template.jinja").write_text(template)
    return llm.load(path, backend="numpy")


@pytest.mark.parametrize(
    "family", ["llama", pytest.param("mamba", marks=pytest.mark.slow), pytest.param("gpt2", marks=pytest.mark.slow)]
)
def test_an_answer_is_that_of_the_whole_conversation(family: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, family)
    talk = model.conversation([{"role": "system", "content": "be kind to everybody you meet"}])
    tokens: list[int] = []
    for said, count in (("hello", 5), ("and then?", 7), ("x", 1), ("why", 4)):
        before = talk.read
        answer = talk.send(said, count)
        assert talk._run is not None
        prompt = talk._run.tokens[: -len(answer.tokens)]
        assert answer.tokens.tolist() == model.generate(prompt, count).tokens.tolist()
        assert prompt[: len(tokens)] == tokens, "what was read and written stays as it is"
        assert talk.read - before == len(prompt) - len(tokens), "something was read again"
        assert answer.prompt_tokens == len(prompt)
        tokens = prompt + answer.tokens.tolist()
    assert [message["role"] for message in talk.messages] == ["system", *["user", "assistant"] * 4]
    assert len(model.programs) == 2, "one for conversations, one for the comparison"


def test_penalties_count_the_tokens_of_one_answer(tmp_path: Path) -> None:
    model = loaded(tmp_path)
    options: Any = {"presence_penalty": 0.3, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
    talk = model.conversation(**options)
    for said in ("hello hello hello", "more"):
        answer = talk.send(said, 12)
        assert talk._run is not None
        prompt = talk._run.tokens[: -len(answer.tokens)]
        assert answer.tokens.tolist() == model.generate(prompt, 12, **options).tokens.tolist()
    assert talk.read == len(prompt) - 12, "something was read again"


@pytest.mark.parametrize("given", [1, 20])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.3},
        {"temperature": 1.0, "top_k": 5, "logit_bias": {3: 1}},
    ],
)
def test_a_step_is_not_begun_before_the_one_before_is_known(options: Any, given: int, tmp_path: Path) -> None:
    """Else the host could not decide what is read after an answer, and a stream would not be one."""
    model = loaded(tmp_path)
    how = sampling(model.config.vocabulary, (), **options)
    program, asked = model.continuing(how.choice), 0

    def items() -> Iterator[np.ndarray]:
        nonlocal asked
        while True:
            asked += 1
            yield np.asarray(-1, np.int32)

    inputs = {"prompt": np.arange(30, dtype=np.int32), "given": items(), **how.inputs, **model.weights}
    if how.choice.counted:
        inputs["answer"] = np.full(30, 20, np.int32)
    steps = program.program.stream(over=program.t, bounds={program.given: given}, **inputs)
    seen = [asked for _ in steps]
    assert seen[given:] == list(range(given + 1, 31))


def test_what_makes_a_conversation_be_read_again(tmp_path: Path) -> None:
    """A template that forgets answers, an answer that was not heard to its end, a stop string, a text that is full."""
    forgetful = loaded(
        tmp_path / "a", template="{% for m in messages if m.role == 'user' %}{{ m.content }};{% endfor %}"
    )
    talk = forgetful.conversation()
    talk.send("one", 3)
    assert talk.send("two", 3).tokens.tolist() == forgetful.generate("one;two;", 3).tokens.tolist()
    assert talk.read == len("one;") + len("one;two;")

    model = loaded(tmp_path / "b")
    talk = model.conversation()
    stream = talk.stream("hello", 9)
    first = next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert talk.messages[-1] == {"role": "assistant", "content": first.text}
    whole = model.apply_chat_template([*talk.messages, {"role": "user", "content": "x"}])
    assert talk.send("x", 4).tokens.tolist() == model.generate(whole, 4).tokens.tolist()

    plain = model.generate("u:hello;a:", 9)
    assert plain.text
    talk = model.conversation(stop=plain.text[2])
    assert talk.send("hello", 9).text == plain.text[: plain.text.index(plain.text[2])]
    whole = model.apply_chat_template([*talk.messages, {"role": "user", "content": "x"}])
    expected = model.generate(whole, 4, stop=plain.text[2])
    assert talk.send("x", 4).text == expected.text


def test_a_run_that_is_full_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrhythm.llm.conversation.ROOM", 24)
    model = loaded(tmp_path)
    talk = model.conversation()
    for said in ("hello", "more and more", "still more of it"):
        answer = talk.send(said, 4)
        assert talk._run is not None
        prompt = talk._run.tokens[:-4]
        assert answer.tokens.tolist() == model.generate(prompt, 4).tokens.tolist()
    assert talk.read > len(prompt)


def test_what_is_refused(tmp_path: Path) -> None:
    model = loaded(tmp_path / "a")
    wrong: list[dict[str, Any]] = [{"n": 2}, {"num_beams": 2}, {"logprobs": 1}, {"json_schema": {}}]
    for options in wrong:
        with pytest.raises(PromptError, match="conversation"):
            model.conversation(**options)
    with pytest.raises(PromptError, match="0 new tokens"):
        model.conversation().send("x", 0)
    for message in (None, 3, {"content": "x"}):
        with pytest.raises(PromptError, match="without a role"):
            model.conversation().send(message)  # type: ignore[arg-type]
    short = loaded(tmp_path / "b", "gpt2", n_positions=32)
    talk = short.conversation()
    talk.send("hello", 8)
    with pytest.raises(ContextLengthError):
        talk.send("a long message", 20)
    assert len(talk.messages) == 2, "what was refused was not said"
    assert talk.send("x", 2).tokens.size == 2


@pytest.mark.slow
def test_the_real_model_answers_as_in_chat() -> None:
    model = llm.load(smollm2())
    talk, messages = model.conversation(), []
    for said in ("What is the capital of France?", "And of Italy? Answer in one sentence."):
        messages.append({"role": "user", "content": said})
        expected = model.chat(messages, 30)
        found = talk.send(said, 30)
        assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
        messages.append({"role": "assistant", "content": expected.text})
    assert talk.read < len(model.chat_tokens(messages)), "the answers were not read again"
