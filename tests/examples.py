"""Runs the programs of `examples/`, and draws their pictures: `python -m tests.examples` writes docs/pictures/examples.

Run on NumPy an example takes a second or two, since nothing is compiled by XLA. Its picture is the storage plan of its
largest program over the schedule: what is live when.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polyrhythm as pr
from polyrhythm.runtime.report import gather
from polyrhythm.runtime.report.script import recorded

ROOT = Path(__file__).resolve().parent.parent
FOLDER, PICTURES = ROOT / "examples", ROOT / "docs" / "pictures" / "examples"
OTHERS = {"demo", "characters"}
"""Those that are longer; `tests/test_demo.py` runs them."""

SMALL: dict[str, dict[str, Any]] = {"dqn": {"iterations": 30}}
"""Sizes for the tests of those that take long; the slow lane runs them as they are."""

COLOURS = {"input": "#868e96", "variable": "#74b816", "buffer": "#1c7ed6", "output": "#9c36b5"}
MOST_ROWS = 12


def names() -> list[str]:
    """Every example that runs by itself."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in OTHERS)


def run(name: str, backend: str = "numpy", small: bool = True) -> list[pr.Program]:
    """The programs that an example compiles, on a backend that needs no XLA."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    programs: list[pr.Program] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        _on("jax" if name == "sharded_training" else backend),
        recorded(programs, profile=False),
        patch.object(sys, "argv", [name, *_arguments(name, Path(folder))]),
    ):
        spec.loader.exec_module(module)
        module.main(**(SMALL.get(name, {}) if small else {}))
    return programs


def _arguments(name: str, folder: Path) -> list[str]:
    """What an example is called with: one needs a language model, here a small random one."""
    if name != "lora":
        return []
    model = pr.llm.write_random(folder / "model", num_hidden_layers=2)
    return ["--model", str(model), "--iterations", "2", "--length", "8", "--adapter", str(folder / "adapter")]


@contextmanager
def _on(backend: str) -> Iterator[None]:
    compile = pr.compile

    def chosen(*given: Any, **options: Any) -> pr.Program:
        return compile(*given, **{**options, "backend": backend})

    with patch.object(pr, "compile", chosen):
        yield


def picture(program: pr.Program) -> str:
    """The storage plan over the schedule as an SVG: the largest places, each from its first block to its last."""
    data = gather(program)
    bounds = {bound["name"]: bound["value"] for bound in data["bounds"]}
    places = {place.name: program.memory.bytes_of(place, bounds) for place in program.compiled.loops.places.values()}
    rows = sorted(data["places"], key=lambda place: -places[place["name"]])[:MOST_ROWS]
    total, height = max(1, data["blocks"]), 20 * len(rows) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" font-family="monospace" font-size="11">'
    ]
    at = ", ".join(f"{name} = {value:,}" for name, value in bounds.items()) or "any bounds"
    lines.append(f'<text x="4" y="14" fill="#868e96">storage over {total} blocks of the schedule, {escape(at)}</text>')
    for number, place in enumerate(rows):
        y, left = 24 + 20 * number, 300 + 410 * place["first"] / total
        width = max(2.0, 410 * (place["last"] + 1 - place["first"]) / total)
        size = f"{places[place['name']]:,} B"
        lines.append(f'<text x="4" y="{y + 12}" fill="#868e96">{escape(place["name"][:26])}</text>')
        lines.append(f'<text x="292" y="{y + 12}" fill="#868e96" text-anchor="end">{size}</text>')
        colour = COLOURS[place["kind"]]
        lines.append(f'<rect x="{left:.1f}" y="{y + 2}" width="{width:.1f}" height="13" rx="2" fill="{colour}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or names():
        programs = run(name, small=False)
        largest = max(programs, key=lambda program: len(program.compiled.graph.nodes))
        (PICTURES / f"{name}.svg").write_text(picture(largest), encoding="utf-8")
        print(f"{name}: {len(programs)} programs", file=sys.stderr)


if __name__ == "__main__":
    main()
