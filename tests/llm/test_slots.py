"""Slots of a server: prompts read in chunks beside texts that are written, prefixes that are not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrhythm import llm
from polyrhythm.llm.serving import slots as module
from polyrhythm.llm.serving.programs import reading
from polyrhythm.llm.serving.requests import Request
from polyrhythm.llm.serving.slots import Prefixes, Slots


def loaded(folder: Path, family: str = "llama", backend: str = "numpy") -> llm.Model:
    return llm.load(llm.write_random(folder, family, eos_token_id=None), backend=backend)


def answered(slots: Slots, asked: list[tuple[list[int], int]]) -> tuple[list[list[int]], list[Request]]:
    """The tokens of each request, when they go into slots as these get free."""
    found: dict[int, list[int]] = {n: [] for n in range(len(asked))}
    requests = [Request(*each, {}, lambda item: None) for each in asked]
    numbers, left = {id(request): n for n, request in enumerate(requests)}, list(requests)
    while left or slots.requests:
        while left and slots.begin(left[0]):
            left.pop(0)
        for request, piece in slots.step():
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
        ("llama", "jax"),
        ("gemma2", "jax"),
    ],
)
def test_prompts_of_all_lengths_and_shared_beginnings(tmp_path: Path, family: str, backend: str) -> None:
    """Each text is what it is alone, whether its prompt entered by steps, in chunks, or partly from an earlier one."""
    model, rng = loaded(tmp_path, family, backend), np.random.default_rng(1)
    system = rng.integers(0, 256, 40).tolist()
    lengths = [(3, 30), (5, 20), (25, 10), (70, 20), (18, 30), (2, 5), (60, 20)]
    asked = [(rng.integers(0, 256, length).tolist(), count) for length, count in lengths]
    asked += [([*system, *rng.integers(0, 256, length).tolist()], 9) for length in (3, 20, 5)]
    found, requests = answered(Slots(model, 3, 96), asked)
    assert found == [model.generate(*each).tokens.tolist() for each in asked]
    assert [request.reused for request in requests] == [0] * 8 + [40, 40]


def test_texts_go_on_while_a_prompt_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 8)
    model = loaded(tmp_path)
    slots = Slots(model, 2, 128)
    short, long = Request([5], 100, {}, lambda item: None), Request(list(range(50)), 4, {}, lambda item: None)
    assert slots.begin(short)
    for _ in range(60):
        slots.step()
    assert slots.begin(long)
    order = [request for _ in range(12) for request, _ in slots.step()]
    # Seven chunks, the last of which the prompt's last token follows at once.
    assert order.index(long) == 2 * 6 + 1 - 6 + 1
    assert order.count(short) == 12
    assert order.count(long) == 4


def test_a_prompt_in_parts_stores_what_it_stores_whole(tmp_path: Path) -> None:
    model, text = loaded(tmp_path, "gemma3_text"), np.random.default_rng(0).integers(0, 256, 50).tolist()
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
