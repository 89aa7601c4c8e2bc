"""The table of functions in docs/language.md lists every public name."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import polyrhythm as pr

PAGE = Path(__file__).parents[1] / "docs" / "language.md"

GROUPS: dict[str, str] = {
    "polyrhythm.language.index": "Dims and index expressions",
    "polyrhythm.language.inputs": "Inputs and host functions",
    "polyrhythm.language.foreign": "Inputs and host functions",
    "polyrhythm.language.recurrent": "Recurrent tensors",
    "polyrhythm.language.tensor": "Tensors",
    "polyrhythm.language.gradient": "Gradients",
    "polyrhythm.language.checkpoint": "Gradients",
    "polyrhythm.language.custom": "Gradients",
    "polyrhythm.language.budget": "Compiling",
    "polyrhythm.language.chunks": "Compiling",
    "polyrhythm.language.sharding": "Compiling",
    "polyrhythm.runtime.exporting": "Compiling",
    "polyrhythm.oracle": "Evaluating",
    "polyrhythm.compiler.analysis.calls": "Evaluating",
    "polyrhythm.errors": "Evaluating",
    "polyrhythm.runtime.program": "Compiling",
    "polyrhythm.runtime.settings": "Compiling",
    "polyrhythm.runtime.checkpoints": "Compiling",
    "polyrhythm.language.functions.creation": "Making tensors",
    "polyrhythm.language.functions.arithmetic": "Arithmetic, comparison, choice",
    "polyrhythm.language.functions.elementwise": "Element by element",
    "polyrhythm.language.functions.activations": "Activations",
    "polyrhythm.language.functions.reductions": "Along axes",
    "polyrhythm.language.functions.sorting": "Order",
    "polyrhythm.language.functions.indexing": "Positions that are data",
    "polyrhythm.language.functions.shapes": "Shapes",
    "polyrhythm.language.functions.linalg": "Products of matrices",
    "polyrhythm.language.functions.quantised": "Products of matrices",
    "polyrhythm.language.fft": "Complex numbers",
    "polyrhythm.language.functions.complex_numbers": "Complex numbers",
    "polyrhythm.language.linalg": "Products of matrices",
    "polyrhythm.language.functions.windows": "Convolution and pooling",
    "polyrhythm.language.functions.random": "Random numbers",
}
"""The heading under which the names of a module are listed."""


def table() -> str:
    listed: dict[str, list[str]] = {heading: [] for heading in GROUPS.values()}
    for name in sorted(pr.__all__, key=lambda name: (name.lower(), name)):
        public = getattr(pr, name)
        module = public.__name__ if isinstance(public, ModuleType) else public.__module__
        summary = (inspect.getdoc(public) or "").splitlines()[0].replace("|", "\\|")
        listed[GROUPS[module]].append(f"| `{name}` | {summary} |")
    parts = []
    for heading, rows in listed.items():
        if rows:
            parts.append("\n".join([f"### {heading}", "", "| name | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def test_the_table_lists_every_function(request: pytest.FixtureRequest) -> None:
    """`--update-golden` rewrites the table on the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- functions -->\n")
    listed, _, after = rest.partition("<!-- end -->")
    if request.config.getoption("--update-golden"):
        PAGE.write_text(f"{before}<!-- functions -->\n\n{table()}\n\n<!-- end -->{after}", encoding="utf-8")
    else:
        assert listed.strip() == table()


@pytest.mark.parametrize("name", pr.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(pr, name))


def test_methods_are_functions_too() -> None:
    for name in ("sum", "reshape", "cast", "exp", "abs"):
        function: Callable[..., object] = getattr(pr, name)
        assert inspect.getdoc(getattr(pr.Tensor, name)) == inspect.getdoc(function)


def test_every_name_is_exported_once_and_no_helper_leaks() -> None:
    assert len(set(pr.__all__)) == len(pr.__all__)
    found = {name for name, value in vars(pr).items() if not (name.startswith("_") or isinstance(value, ModuleType))}
    assert found == set(pr.__all__) - {"errors", "fft", "linalg"}


def test_astype_is_cast() -> None:
    x = pr.constant([1.7, -1.7])
    assert pr.evaluate(x.astype("int32")).tolist() == pr.evaluate(x.cast("int32")).tolist() == [1, -1]
