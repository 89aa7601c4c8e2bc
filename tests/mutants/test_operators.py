"""The mutants: each kind of change, nothing of what only people see, and the same sample every time."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.__main__ import FOLDERS, ROOT, SHORT, drawn, prefix
from tests.mutants.operators import applied, modules, mutants_of

SOURCE = '''
"""A module with 1 docstring."""
def f(x: int | None, y: "list[0]" = 3) -> bool:
    if x < y and not x:
        raise ValueError(f"{x + 1} is less")
    assert x == 0
    return (x + 2 if x is None else y)
'''


def test_every_kind_of_change_and_nothing_that_is_only_shown() -> None:
    found = [(m.line, m.kind, m.before, m.after) for m in mutants_of("m", SOURCE)]
    assert found == [
        (3, "constant", "3", "4"),
        (4, "boolean", "x < y and (not x)", "x < y or not x"),
        (4, "comparison", "x < y", "x <= y"),
        (4, "boolean", "not x", "x"),
        (7, "result", "return x + 2 if x is None else y", "return None"),
        (7, "boolean", "x + 2 if x is None else y", "x + 2 if not x is None else y"),
        (7, "comparison", "x is None", "x is not None"),
        (7, "arithmetic", "x + 2", "x - 2"),
        (7, "constant", "2", "3"),
    ]


def test_a_change_is_made_at_one_place() -> None:
    for mutant in mutants_of("m", SOURCE):
        before, after = (ast.unparse(tree).splitlines() for tree in (ast.parse(SOURCE), applied(mutant, SOURCE)))
        different = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        assert len(different) == 1, mutant.name


def test_the_package_can_be_compiled_with_any_change() -> None:
    sources = dict(modules(ROOT / "polyrhythm", FOLDERS))
    for mutant in drawn(20, 1):
        compile(applied(mutant, sources[mutant.module]), mutant.module, "exec")


def test_the_sample_is_the_same_every_time() -> None:
    sample = drawn(200, 5)
    assert sample == drawn(200, 5)
    assert len({mutant.name for mutant in sample}) == 200
    assert {"/".join(mutant.module.split(".")[1:3]) for mutant in sample} == set(FOLDERS)


@pytest.mark.parametrize(
    ("module", "near"),
    [
        ("polyrhythm.compiler.legality.reads", "polyrhythm.compiler.legality"),
        ("polyrhythm.compiler.loops.ir", "polyrhythm.compiler.loops"),
        ("polyrhythm.compiler.backends.python.numpy", "polyrhythm.compiler.backends"),
        ("polyrhythm.compiler.backends.jax.trace.lanes", "polyrhythm.compiler.backends.jax"),
        ("polyrhythm.compiler.backends.jax.ops.shapes", "polyrhythm.compiler.backends.jax.ops"),
    ],
)
def test_the_nearest_tests_come_first(module: str, near: str) -> None:
    assert prefix(module, SHORT) == near
