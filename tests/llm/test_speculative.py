"""Speculative decoding: the tokens are those of the target alone, whatever the draft proposes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrhythm import llm
from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.errors import PromptError


def loaded(folder: Path, family: str = "llama", backend: str = "numpy", **sizes: Any) -> llm.Model:
    return llm.load(llm.write_random(folder, family, eos_token_id=None, **sizes), backend=backend)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    return loaded(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    return loaded(tmp_path_factory.mktemp("other"), num_hidden_layers=1, hidden_size=32)


def rounds(model: llm.Model, prompt: list[int], count: int) -> np.ndarray:
    """How many tokens of each round counted in the last program of a model."""
    (program,) = model._speculating.values()
    inputs, bounds = program.inputs(np.array(prompt, np.int32), count)
    (draft, _, _) = next(iter(model._speculating))
    weights = {**model.weights, **{f"draft.{name}": weight for name, weight in draft.weights.items()}}
    return np.asarray(program.program(bounds=bounds, **weights, **inputs)["taken"])


def test_the_text_is_that_of_the_target(target: llm.Model, other: llm.Model) -> None:
    for prompt, count in (([5], 9), ([1, 2, 3, 4], 12), (list(range(9)), 1), (list(range(11)), 20)):
        wanted = target.generate(prompt, count).tokens.tolist()
        for draft in (target, other):
            found = target.generate(prompt, count, draft_model=draft, num_draft_tokens=3)
            assert found.tokens.tolist() == wanted
            assert found.finish_reason == "length"
            assert found.text == target.generate(prompt, count).text


def test_a_draft_that_is_right_saves_steps_of_the_target(tmp_path: Path) -> None:
    target, other = loaded(tmp_path / "a"), loaded(tmp_path / "b", num_hidden_layers=1, hidden_size=32)
    target.generate([1, 2, 3, 4, 5], 16, draft_model=target, num_draft_tokens=3)
    assert rounds(target, [1, 2, 3, 4, 5], 16)[2:].tolist() == [4, 4, 4, 4]
    again = target.attending(None)
    again.generate([1, 2, 3, 4, 5], 16, draft_model=other, num_draft_tokens=3)
    taken = rounds(again, [1, 2, 3, 4, 5], 16)[2:]
    assert taken.min() == 1, "the small model is as good as the large one, and shows little"
    assert 15 <= taken.sum() <= 18


def test_end_tokens_at_every_place_of_a_round(target: llm.Model, other: llm.Model) -> None:
    plain = target.generate([4, 5, 6], 14).tokens.tolist()
    for place in (0, 1, 2, 3, 4, 7):
        for draft in (target, other):
            wanted = target.generate([4, 5, 6], 14, stop_token_ids=[plain[place]])
            found = target.generate([4, 5, 6], 14, stop_token_ids=[plain[place]], draft_model=draft)
            assert found.tokens.tolist() == wanted.tokens.tolist()
            assert found.finish_reason == wanted.finish_reason == "stop"


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("mistral", {"sliding_window": 5}),
        pytest.param("gemma3_text", {"sliding_window": 4}, marks=pytest.mark.slow),
        pytest.param("mixtral", {}, marks=pytest.mark.slow),
        pytest.param("qwen3", {}, marks=pytest.mark.slow),
    ],
)
def test_windows_and_families(family: str, sizes: dict[str, Any], tmp_path: Path, target: llm.Model) -> None:
    """A window counts tokens that are settled, not those that were proposed."""
    model = loaded(tmp_path, family, **sizes)
    prompt = [7, 3, 9, 1, 4, 4, 2]
    wanted = model.generate(prompt, 15).tokens.tolist()
    for draft in (model, target):
        assert model.generate(prompt, 15, draft_model=draft, num_draft_tokens=2).tokens.tolist() == wanted


@pytest.mark.slow
def test_on_jax(tmp_path: Path) -> None:
    model = loaded(tmp_path / "a", backend="jax")
    draft = loaded(tmp_path / "b", backend="jax", num_hidden_layers=1)
    for prompt in ([3], list(range(30))):
        wanted = model.generate(prompt, 24).tokens.tolist()
        for own in (model, draft):
            assert model.generate(prompt, 24, draft_model=own).tokens.tolist() == wanted


def test_what_is_refused(tmp_path: Path, target: llm.Model, other: llm.Model) -> None:
    for options in ({"temperature": 1.0}, {"num_beams": 2}, {"n": 2}, {"stop": "a"}, {"num_draft_tokens": 0}):
        with pytest.raises(PromptError):
            target.generate([1], 3, draft_model=other, **options)
    with pytest.raises(PromptError, match="a draft model 'small'"):
        target.generate([1], 3, draft_model="small")
    with pytest.raises(PromptError, match="of 300 tokens for a model of 260"):
        target.generate([1], 3, draft_model=loaded(tmp_path / "a", vocab_size=300))
    with pytest.raises(UnsupportedError, match="family mamba"):
        target.generate([1], 3, draft_model=loaded(tmp_path / "b", "mamba"))
    with pytest.raises(UnsupportedError, match="pattern"):
        target.attending(llm.window(3)).generate([1], 3, draft_model=other)
