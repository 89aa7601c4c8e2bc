"""Output that must be JSON of a schema: it is, whatever the model would rather write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyrhythm import llm
from polyrhythm.llm.errors import PromptError
from tests.llm.gguf_files import smollm2

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    return llm.load(llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1), backend="numpy")


def check(found: llm.Generated) -> None:
    assert found.finish_reason == "stop"
    made = json.loads(found.text or "")
    assert set(made) == {"a", "b"}
    assert made["a"] in ("x", "yy")
    assert 0 <= made["b"] <= 99


def test_random_models_write_json_of_a_schema(model: llm.Model) -> None:
    """A model without sense may write blanks for ever; the schema's compiler is told to write none."""
    compact = json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})
    check(model.generate("some words", 60, json_schema=compact))
    for samples in model.generate(["a", "some other words"], 60, json_schema=compact, temperature=1.0, n=3, seed=5):
        for sample in samples:
            check(sample)
    pieces = list(model.stream("some words", 60, json_schema=compact))
    assert "".join(piece.text for piece in pieces) == model.generate("some words", 60, json_schema=compact).text


def test_several_texts_on_jax_are_those_of_each_alone(tmp_path: Path) -> None:
    """What may follow is given between two steps, so no step may choose before the last choice has been seen."""
    model = llm.load(llm.write_random(tmp_path, num_hidden_layers=1))
    compact = json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})
    prompts = ["a", "some other words", "b"]
    for found, prompt in zip(model.generate(prompts, 40, json_schema=compact), prompts, strict=True):
        check(found)
        assert found.text == model.generate(prompt, 40, json_schema=compact).text


@pytest.mark.parametrize("options", [{"repetition_penalty": 1.3}, {"frequency_penalty": 0.5, "presence_penalty": 0.1}])
def test_penalties_leave_the_schema_alone(model: llm.Model, options: Any) -> None:
    """With a prompt that is read at once: what may follow must not be asked for before a token is there."""
    compact = json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})
    check(model.generate("some words, and some more words", 60, json_schema=compact, **options))


def test_a_text_that_is_cut_off_says_so(model: llm.Model) -> None:
    assert model.generate("some words", 3, json_schema=SCHEMA).finish_reason == "length"


def test_schemas_that_are_refused(model: llm.Model, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="the JSON schema is not understood: Invalid type: nonsense"):
        model.generate("x", 3, json_schema={"type": "nonsense"})
    endless = llm.load(llm.write_random(tmp_path, num_hidden_layers=1, eos_token_id=None), backend="numpy")
    with pytest.raises(PromptError, match="without an end token"):
        endless.generate("x", 3, json_schema=SCHEMA)


@pytest.mark.slow
def test_a_real_model_answers_in_json() -> None:
    model = llm.load(smollm2())
    question = {"role": "user", "content": "Choose x or yy, and a number below 100. Answer in JSON with a and b."}
    check(model.chat([question], 80, json_schema=SCHEMA))
