"""Beam search against transformers, on random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyrhythm import llm
from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.errors import PromptError
from tests.llm.references import PROMPTS, Reference


def expected(reference: Reference, prompt: list[int], count: int, **options: Any) -> list[tuple[list[int], float]]:
    """The texts and scores that transformers find, without what fills a text up."""
    ids = torch.tensor([prompt])
    ends = options.pop("eos_token_id", None)
    found = reference.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        eos_token_id=ends,
        pad_token_id=255,
        **options,
    )
    texts = []
    for sequence, score in zip(found.sequences, found.sequences_scores, strict=True):
        tokens = sequence[len(prompt) :].tolist()
        first = next((n for n, token in enumerate(tokens) if token in (ends or [])), len(tokens) - 1)
        texts.append((tokens[: first + 1], float(score)))
    return texts


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama 3, scaled", {}),
        ("mistral, window 3", {"length_penalty": 0.0}),
        pytest.param("gpt2", {"length_penalty": -1.0}, marks=pytest.mark.slow),
        pytest.param("mistral, window 16", {"early_stopping": True}, marks=pytest.mark.slow),
        pytest.param("falcon, alibi", {"length_penalty": 2.0}, marks=pytest.mark.slow),
        pytest.param("gpt_oss", {}, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", {}, marks=pytest.mark.slow),
    ],
)
def test_texts_and_scores_are_those_of_transformers(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    reference = Reference(name)
    model = llm.load(reference.save(tmp_path), backend="numpy")
    plain = [
        token for text, _ in expected(reference, PROMPTS[1], 10, num_beams=3, num_return_sequences=3) for token in text
    ]
    # Without an end, and with tokens that occur in what is found, so that texts end at different steps.
    for ends in ([], plain[4:5], plain[3:6]):
        for beams in (2, 3):
            wanted = expected(
                reference,
                PROMPTS[1],
                10,
                num_beams=beams,
                num_return_sequences=beams,
                **({"eos_token_id": ends} if ends else {}),
                **options,
            )
            found = model.generate(
                PROMPTS[1], 10, num_beams=beams, n=beams, ignore_eos=True, stop_token_ids=ends, **options
            )
            assert [one.tokens.tolist() for one in found] == [text for text, _ in wanted]
            np.testing.assert_allclose([one.score for one in found], [score for _, score in wanted], rtol=1e-4)
            assert [one.finish_reason for one in found] == [
                "stop" if text[-1] in ends else "length" for text, _ in wanted
            ]


@pytest.mark.slow
def test_on_jax(tmp_path: Path) -> None:
    reference = Reference("llama 2")
    model = llm.load(reference.save(tmp_path))
    for prompt in (PROMPTS[1], PROMPTS[1][:1]):
        ((text, score),) = expected(reference, prompt, 20, num_beams=4)
        found = model.generate(prompt, 20, num_beams=4, ignore_eos=True)
        assert found.tokens.tolist() == text
        assert found.score == pytest.approx(score, rel=1e-4)


def test_one_prompt_or_several_and_nothing_to_write(tmp_path: Path) -> None:
    model = llm.load(llm.write_random(tmp_path, num_hidden_layers=1, eos_token_id=None), backend="numpy")
    one, other = model.generate([[1, 2, 3], [7]], [4, 6], num_beams=3)
    assert one.tokens.tolist() == model.generate([1, 2, 3], 4, num_beams=3).tokens.tolist()
    assert other.tokens.tolist() == model.generate([7], 6, num_beams=3).tokens.tolist()
    assert model.generate([1], 0, num_beams=3).tokens.size == 0
    assert len(model.programs) == 1
    scores = [one.score for one in model.generate([5, 6], 5, num_beams=4, n=4)]
    assert scores == sorted(scores, reverse=True)


def test_a_beam_is_at_least_as_likely_as_greedy_decoding(tmp_path: Path) -> None:
    """Not in general, but where the likeliest tokens are among the best rows at each step, as for one step."""
    model = llm.load(llm.write_random(tmp_path, num_hidden_layers=1, eos_token_id=None), backend="numpy")
    for prompt in ([3], [9, 1]):
        found = model.generate(prompt, 1, num_beams=4, n=4)
        logits = model.logits(prompt)[-1]
        assert [one.tokens[0] for one in found] == np.argsort(-logits)[:4].tolist()


def test_what_is_refused(tmp_path: Path) -> None:
    model = llm.load(llm.write_random(tmp_path / "llama", num_hidden_layers=1), backend="numpy")
    wrong: list[dict[str, Any]] = [
        {"temperature": 0.5},
        {"stop": "x"},
        {"repetition_penalty": 1.2},
        {"logprobs": 1},
        {"json_schema": {}},
        {"n": 5},
    ]
    for options in wrong:
        with pytest.raises(PromptError):
            model.generate([1], 3, num_beams=2, **options)
    counts: list[Any] = [0, -1, 1.5, "2"]
    for count in counts:
        with pytest.raises(PromptError, match="beams"):
            model.generate([1], 3, num_beams=count)
    with pytest.raises(PromptError, match="stream"):
        model.stream([1], 3, num_beams=2)
    states = llm.load(llm.write_random(tmp_path / "mamba", "mamba"), backend="numpy")
    with pytest.raises(UnsupportedError, match="states"):
        states.generate([1], 3, num_beams=2)
