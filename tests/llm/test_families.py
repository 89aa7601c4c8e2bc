"""Families of models against transformers, on random checkpoints that transformers wrote."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrhythm import llm
from polyrhythm.compiler.loops.ir import blocks_of
from polyrhythm.llm.config import stacks
from polyrhythm.llm.errors import ContextLengthError
from polyrhythm.llm.families import FAMILIES
from tests.llm.references import MORE, PROMPTS, Reference
from tests.structure import code_lines

QUICK = ["falcon, alibi", "deepseek_v3", "recurrent_gemma"]
"""Biases by position, experts and latents in layers of two kinds, states in turn with windows."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in MORE])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = Reference(name, gain=1.5)
    model = llm.load(reference.save(tmp_path), backend="numpy")
    tokens = np.random.default_rng(0).integers(0, 256, 40).tolist()
    expected = reference.logits(tokens)
    assert np.abs(model.logits(tokens) - expected).max() < 1e-4
    assert np.abs(expected).max() > 0.3
    assert np.std(expected, 0).max() > 0.05, "the logits do not depend on the text"


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Prompts of different lengths: some steps are given to all, some to a few, and the rest is written."""
    reference = Reference(name, gain=1.5)
    model = llm.load(reference.save(tmp_path))
    found = model.generate(PROMPTS, 24)
    for one, prompt in zip(found, PROMPTS, strict=True):
        assert one.tokens.tolist() == reference.tokens(prompt, 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "mixtral", "deepseek_v3", "bloom"])
def test_every_way_through_a_text_is_the_same(name: str, tmp_path: Path) -> None:
    model = llm.load(Reference(name, gain=1.5).save(tmp_path))
    prompt = np.random.default_rng(0).integers(0, 256, 20).tolist()
    written = model.generate(prompt, 12).tokens.tolist()
    scores = model.logits(prompt + written)
    assert scores[len(prompt) - 1 : -1].argmax(-1).tolist() == written
    assert [piece.token for piece in model.stream(prompt, 12)] == written


@pytest.mark.slow
def test_dynamic_positions_beyond_the_trained_length(tmp_path: Path) -> None:
    """Transformers, token by token, turn each new step by the length of the text so far."""
    reference = Reference("llama, dynamic", gain=1.5)
    reference.model.config.max_position_embeddings = 24
    rotary = reference.model.model.rotary_emb
    rotary.max_seq_len_cached = rotary.original_max_seq_len = 24
    model = llm.load(reference.save(tmp_path), backend="numpy")
    assert model.generate(PROMPTS[1], 40).tokens.tolist() == reference.tokens(PROMPTS[1], 40)


@pytest.mark.slow
def test_longrope_within_the_trained_length(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0, 1.5, 2.0, 1.2, 1.1, 3.0], "long_factor": [9.0] * 6}
    scaling = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **factors}
    lengths = {"max_position_embeddings": 256, "original_max_position_embeddings": 64}
    MORE["phi3, longrope"] = ("Phi3", {**MORE["phi3"][1], **lengths, "rope_parameters": scaling})
    try:
        reference = Reference("phi3, longrope", gain=1.5)
        model = llm.load(reference.save(tmp_path), backend="numpy")
    finally:
        del MORE["phi3, longrope"]
    tokens = np.random.default_rng(0).integers(0, 256, 40).tolist()
    assert np.abs(model.logits(tokens) - reference.logits(tokens)).max() < 1e-4
    with pytest.raises(ContextLengthError, match="65 tokens, but the model has 64 positions"):
        model.logits([1] * 65)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("aaaa", [(0, 1, 4)]),
        ("abab", [(0, 2, 2)]),
        ("aaab" * 2 + "aa", [(0, 4, 2), (8, 1, 2)]),
        ("aabbb", [(0, 1, 2), (2, 1, 3)]),
        ("abc", [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
        ("a", [(0, 1, 1)]),
        ("aabaab", [(0, 3, 2)]),
    ],
)
def test_layers_become_few_loops(kinds: str, expected: Any) -> None:
    found = stacks(kinds)
    assert [(s.start, s.period, s.repeats) for s in found] == expected
    assert "".join(kinds[s.start : s.start + s.period] * s.repeats for s in found) == kinds


def test_families_are_short() -> None:
    """At most 60 lines of code for each, imports aside; what several share is elsewhere."""
    read: dict[Path, int] = {}
    for family in FAMILIES.values():
        place = Path(inspect.getfile(family.read))
        read[place] = read.get(place, 0) + 1
    lines = {}
    for place, families in read.items():
        tree = ast.parse(place.read_text())
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        taken = sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)
        lines[place.stem] = (code_lines(place.read_text()) - taken) / families
    assert sum(read.values()) == len(FAMILIES) >= 27
    assert {name: count for name, count in lines.items() if count > 60} == {}


@pytest.mark.parametrize("name", ["mixtral", pytest.param("gpt_oss", marks=pytest.mark.slow)])
def test_experts_of_one_text_and_of_several(name: str, tmp_path: Path) -> None:
    """A text alone goes through the experts that it chooses, several through all: the tokens are the same."""
    model = llm.load(Reference(name, gain=1.5).save(tmp_path), backend="numpy")
    together = [one.tokens.tolist() for one in model.generate(PROMPTS, 12)]
    assert together == [model.generate(prompt, 12).tokens.tolist() for prompt in PROMPTS]
    taken = [[c.op for b in blocks_of(p.compiled.loops.body) for c in b.body].count("take") for p in model.programs]
    assert taken[1] > taken[0], "matrices are taken for a text alone"


def test_a_pattern_of_the_user_counts_for_all_layers(tmp_path: Path) -> None:
    """Attention to the step itself alone: no logit depends on what came before."""
    reference = Reference("gemma2", gain=1.5)
    model = llm.load(reference.save(tmp_path), attention=llm.window(1), backend="numpy")
    first, second = model.logits([5, 6, 7]), model.logits([8, 9, 7])
    np.testing.assert_allclose(first[-1], second[-1], atol=1e-5)
