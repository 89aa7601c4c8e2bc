"""The corpus of StableHLO: texts do not depend on the run, and every mode of a program is in them."""

from __future__ import annotations

import pytest

from tests.compiler.backends.stablehlo import CORPUS, texts

FEW = ("readme", "prefill", "pattern decode, window")


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in CORPUS])
def test_the_same_program_makes_the_same_text(name: str) -> None:
    once = texts(CORPUS[name]())
    assert texts(CORPUS[name]()) == once
    assert all("func.func public @main" in text for text in once)


def test_modes_of_a_program() -> None:
    """A call, a stream, and a part of a traced function."""
    assert len(texts(CORPUS["prefill"]())) == 3
