"""Slots of a server: prompts read in chunks beside texts that are written, prefixes that are not read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from polyrhythm import llm
from polyrhythm.llm.serving import slots as module
from polyrhythm.llm.serving.programs import reading
from polyrhythm.llm.serving.requests import Request
from polyrhythm.llm.serving.slots import Prefixes, Slots

Load = Callable[..., llm.Model]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """A model of a family on a backend; tests share it, and so what it has compiled."""

    @lru_cache
    def load(family: str = "llama", backend: str = "numpy") -> llm.Model:
        return llm.load(llm.write_random(tmp_path_factory.mktemp(family), family, eos_token_id=None), backend=backend)

    return load


def answered(
    slots: Slots, asked: list[tuple[list[int], int]], options: Sequence[Any] = ()
) -> tuple[list[list[int]], list[Request]]:
    """The tokens of each request, when they go into slots as these get free."""
    found: dict[int, list[int]] = {n: [] for n in range(len(asked))}
    every = options or [{}] * len(asked)
    requests = [Request(*each, own, lambda item: None) for each, own in zip(asked, every, strict=True)]
    assert all(map(slots.takes, requests))
    numbers, left = {id(request): n for n, request in enumerate(requests)}, list(requests)
    while left or slots.requests:
        while left and slots.begin(left[0]):
            left.pop(0)
        for request, _, piece in slots.step():
            found[numbers[id(request)]].append(piece.token)
    return list(found.values()), requests


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        ("llama", "numpy"),
        ("gemma3_text", "numpy"),
        ("mistral", "numpy"),
        ("phi3", "numpy"),
        ("qwen3_moe", "numpy"),
        ("gemma2", "numpy"),
        ("llama", "jax"),
        pytest.param("gemma2", "jax", marks=pytest.mark.slow),
    ],
)
def test_prompts_of_all_lengths_and_shared_beginnings(loaded: Load, family: str, backend: str) -> None:
    """Each text is what it is alone, whether its prompt entered by steps, in chunks, or partly from an earlier one."""
    model, rng = loaded(family, backend), np.random.default_rng(1)
    system = rng.integers(0, 256, 40).tolist()
    lengths = [(3, 30), (5, 20), (25, 10), (70, 20), (18, 30), (2, 5), (60, 20)]
    asked = [(rng.integers(0, 256, length).tolist(), count) for length, count in lengths]
    asked += [([*system, *rng.integers(0, 256, length).tolist()], 9) for length in (3, 20, 5)]
    found, requests = answered(Slots(model, 3, 96), asked)
    assert found == [loaded(family).generate(*each).tokens.tolist() for each in asked]
    assert [request.reused for request in requests] == [0] * 8 + [40, 40]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 1},
    {"temperature": 1.5, "top_k": 20, "seed": 2},
    {"temperature": 1.0, "top_p": 0.7, "seed": 3},
    {"temperature": 2.0, "top_k": 100, "top_p": 0.9, "min_p": 0.02, "seed": 2**40 + 1},
    {"temperature": 1.0, "typical_p": 0.5, "seed": 5},
    {"temperature": 1.2, "top_p": 0.95, "typical_p": 0.9, "seed": -3},
    {"repetition_penalty": 1.4},
    {"presence_penalty": 0.6, "frequency_penalty": 0.3},
    {"temperature": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.4, "logit_bias": {7: 1.5, 9: -3}, "seed": 7},
    {"logit_bias": {65: 4.0}, "stop_token_ids": [65]},
    {"temperature": 1.1, "seed": 11, "logprobs": 3},
    {"json_schema": {"type": "array", "items": {"type": "boolean"}}, "stop_token_ids": [0]},
    {"json_schema": {"type": "integer"}, "stop_token_ids": [0], "temperature": 1.0, "seed": 4},
]
"""Options of requests, each of which gets in a slot what it gets alone."""


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_texts_of_any_options_share_the_slots(loaded: Load, backend: str) -> None:
    """Draws follow the seed of their request, penalties its own tokens; beside it run greedy ones."""
    model, rng = loaded("llama", backend), np.random.default_rng(4)
    asked = [(rng.integers(1, 256, rng.integers(2, 30)).tolist(), 24) for _ in OPTIONS]
    found, requests = answered(Slots(model, 5, 96), asked, OPTIONS)
    for own, tokens, (prompt, count) in zip(OPTIONS, found, asked, strict=True):
        assert tokens == loaded().generate(prompt, count, **own).tokens.tolist(), own
    assert sum(request.drawings is None for request in requests) == 1


@pytest.mark.parametrize(
    ("length", "backend"),
    [(4, "numpy"), (30, "numpy"), pytest.param(4, "jax", marks=pytest.mark.slow), (30, "jax")],
)
def test_samples_of_a_prompt_are_those_of_generate(loaded: Load, backend: str, length: int) -> None:
    """Each has a slot of its own and the draws of its row; a long prompt is read once for all of them."""
    model, prompt = loaded("llama", backend), np.random.default_rng(2).integers(1, 256, length).tolist()
    options: Any = {"temperature": 1.2, "seed": 6, "n": 3}
    slots, beside = Slots(model, 4, 96), Request([5], 60, {}, lambda item: None)
    assert slots.begin(beside)
    for _ in range(40):
        slots.step()
    request, found = Request(prompt, 8, options, lambda item: None), [[], [], []]  # type: ignore[var-annotated]
    assert slots.takes(request)
    assert not slots.takes(Request(prompt, 8, {**options, "n": 5}, lambda item: None))
    assert slots.begin(request)
    assert not slots.begin(Request(prompt, 8, options, lambda item: None)), "there is one slot for three samples"
    reads = 0
    while request in slots.requests:
        reads += sum(text is not None and text.waits for text in slots._texts[:2])
        for own, sample, piece in slots.step():
            if own is request:
                found[sample].append(piece.token)
    assert found == [one.tokens.tolist() for one in model.generate(prompt, 8, **options)]
    assert len(set(map(tuple, found))) == 3
    assert reads == (length > 16)


def test_log_probabilities_in_a_slot_are_those_of_a_text_alone(loaded: Load) -> None:
    model = loaded()
    slots, pieces = Slots(model, 2, 64), []
    options: Any = {"temperature": 1.0, "seed": 3, "logprobs": 4, "repetition_penalty": 1.3}
    assert slots.begin(Request([1, 2, 3], 9, options, lambda item: None))
    while slots.requests:
        pieces += [piece for *_, piece in slots.step()]
    expected = model.generate([1, 2, 3], 9, **options).logprobs or ()
    assert len(pieces) == len(expected) == 9
    for piece, wanted in zip(pieces, expected, strict=True):
        assert piece.logprob is not None
        assert piece.logprob.token == wanted.token
        assert piece.logprob.logprob == pytest.approx(wanted.logprob, abs=1e-5)
        assert [token for token, _ in piece.logprob.top] == [token for token, _ in wanted.top]


def test_texts_go_on_while_a_prompt_is_read(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 8)
    model = loaded()
    slots = Slots(model, 2, 128)
    short, long = Request([5], 100, {}, lambda item: None), Request(list(range(50)), 4, {}, lambda item: None)
    assert slots.begin(short)
    for _ in range(60):
        slots.step()
    assert slots.begin(long)
    order = [request for _ in range(12) for request, *_ in slots.step()]
    # Seven chunks, the last of which the prompt's last token follows at once.
    assert order.index(long) == 6 + 1
    assert order.count(short) == 12
    assert order.count(long) == 4


def test_a_prompt_in_parts_stores_what_it_stores_whole(loaded: Load) -> None:
    model, text = loaded("gemma3_text"), np.random.default_rng(0).integers(0, 256, 50).tolist()
    program = reading(model.config, 64, "numpy")
    whole, parts = program(text, program.nothing(), model.weights), program.nothing()
    for length in (7, 30, 31, 50):
        parts = program(text[:length], parts, model.weights)
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], atol=1e-4)


def read(length: int) -> dict[str, Any]:
    return {"k0": np.arange(length, dtype=np.float32).reshape(1, length, 1, 1)}


def test_prefixes_are_the_longest_and_within_their_bytes() -> None:
    kept = Prefixes(most=4 * 150)
    first, second = list(range(60)), [*range(30), *range(100, 140)]
    kept.keep(first, read(60))
    kept.keep(second, read(70))
    assert kept.longest([*range(30), 99, 98]) is not None
    found = kept.longest([*range(30), *range(100, 110), 7])
    assert found is not None
    assert found["k0"].shape[1] == 40
    assert kept.longest(list(range(10))) is None  # too short to be worth it
    assert kept.longest([9, *range(60)]) is None
    kept.keep(list(range(200, 280)), read(80))  # the first goes: it was used longest ago
    assert kept.longest(first)["k0"].shape[1] == 30  # type: ignore[index]
