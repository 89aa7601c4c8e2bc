"""What models of disk write and score, against transformers on the same files."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

from polyrhythm import llm
from tests.llm.references import PROMPTS, SHAPES, STEPS, Reference


def every(*quick: str) -> list[ParameterSet]:
    """All shapes, of which only some are tried in the quick lane."""
    return [pytest.param(name, marks=[] if name in quick else [pytest.mark.slow]) for name in SHAPES]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = Reference(name)
    model = llm.load(reference.save(tmp_path))
    expected = [reference.tokens(prompt, STEPS) for prompt in PROMPTS]
    assert all(len(set(tokens)) >= 32 for tokens in expected), "the text collapses, and shows little"
    found = model.generate(PROMPTS, STEPS)
    for one, tokens in zip(found, expected, strict=True):
        assert one.tokens.tolist() == tokens
        assert one.finish_reason == "length"


@pytest.mark.parametrize("name", every("gpt2", "mistral, window 16"))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = Reference(name)
    model = llm.load(reference.save(tmp_path))
    tokens = np.random.default_rng(0).integers(0, 256, 150).tolist()
    expected = reference.logits(tokens)
    assert np.abs(model.logits(tokens) - expected).max() < 1e-4
    assert np.abs(expected).max() > 1


def varied(name: str) -> Reference:
    """A model that writes varied text with a gain at which bfloat16 is still close to float32.

    With the gain of the other tests transformers themselves are off by more than the limit, bfloat16 from float32.
    """
    if name == "llama 3.2, tied":
        return Reference(name, gain=0.99, seed=19, layers=2, signed=True)
    return Reference(name, 1.0, {"gpt2": 1, "llama, linear, biases": 3, "mistral, long window": 1}.get(name, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_bfloat16_is_close_to_transformers(name: str, tmp_path: Path) -> None:
    reference = varied(name)
    reference.model.to(torch.bfloat16)
    written = [reference.tokens(prompt, STEPS) for prompt in PROMPTS]
    assert all(len(set(tokens)) >= 32 for tokens in written)
    model = llm.load(reference.save(tmp_path))
    assert model.config.dtype == ml_dtypes.bfloat16
    tokens = np.random.default_rng(0).integers(0, 256, 150).tolist()
    expected, found = reference.logits(tokens), model.logits(tokens)
    errors = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert errors.max() < 2e-2
    assert (found.argmax(-1) == expected.argmax(-1)).mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama 3, scaled", "mistral, window 3", "mistral, long window"])
def test_every_way_through_a_text_is_the_same(name: str, tmp_path: Path) -> None:
    """The whole text at once, the prompt and then token by token, only token by token, and as a stream."""
    model = llm.load(Reference(name).save(tmp_path))
    prompt, longer = PROMPTS[1], PROMPTS[1][:1]
    written = model.generate(prompt, 40).tokens.tolist()
    text = prompt + written
    scores = model.logits(text)
    assert scores[len(prompt) - 1 : -1].argmax(-1).tolist() == written
    assert [piece.token for piece in model.stream(prompt, 40)] == written
    assert [piece.token for piece in model.stream(prompt, 40, chunk=16)] == written
    # With another prompt of one token beside it, only the first token is given to all: the rest goes step by step.
    assert model.generate([prompt, longer], 40)[0].tokens.tolist() == written


@pytest.mark.slow
def test_a_batch_writes_what_each_prompt_writes_alone(tmp_path: Path) -> None:
    model = llm.load(Reference("mistral, window 16").save(tmp_path))
    together = model.generate(PROMPTS, 24)
    for prompt, one in zip(PROMPTS, together, strict=True):
        assert model.generate(prompt, 24).tokens.tolist() == one.tokens.tolist()


@pytest.mark.slow
def test_a_stream_of_a_batch_is_what_it_generates(tmp_path: Path) -> None:
    model = llm.load(Reference("gpt2").save(tmp_path))
    expected = [one.tokens.tolist() for one in model.generate(PROMPTS, 10)]
    found: list[list[int]] = [[], [], []]
    for pieces in model.stream(PROMPTS, 10):
        for row, piece in enumerate(pieces):
            if piece is not None:
                found[row].append(piece.token)
    assert found == expected


@pytest.mark.parametrize("name", ["gpt2", "llama 3.2, tied"])
def test_sharded_files_hold_the_same_weights(name: str, tmp_path: Path) -> None:
    reference = Reference(name)
    one = llm.load(reference.save(tmp_path / "one"))
    several = llm.load(reference.save(tmp_path / "several", max_shard_size="40KB"))
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 2
    assert one.weights.keys() == several.weights.keys()
    for key, weight in one.weights.items():
        np.testing.assert_array_equal(several.weights[key], weight)
