"""What a report gathers, and `polyrhythm report`, without a browser."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import polyrhythm as pr
from polyrhythm.cli import app
from polyrhythm.compiler.ir.terms import Symbol, Term, maximum, minimum
from polyrhythm.runtime.report import gather
from polyrhythm.runtime.report.gather import term
from polyrhythm.runtime.report.page import written


def worth(value: Any, bounds: dict[str, int]) -> int:
    """What the page computes of a term."""
    total = int(value[0])
    for factor, *atoms in value[1:]:
        product = factor
        for atom in atoms:
            if isinstance(atom, str):
                product *= bounds[atom]
            elif "floor" in atom:
                product *= worth(atom["floor"], bounds) // atom["by"]
            else:
                which, arguments = next(iter(atom.items()))
                product *= {"min": min, "max": max}[which](worth(a, bounds) for a in arguments)
        total += product
    return total


def test_terms_keep_their_value() -> None:
    draw = random.Random(0)
    T, B = (Term.of(Symbol(name, "bound")) for name in "TB")
    for _ in range(50):
        made = draw.choice([T, B]) * draw.randint(-3, 3) + draw.randint(-5, 5)
        made = draw.choice([maximum, minimum])(made * B, T + draw.randint(0, 3)) + (made + T) // draw.randint(2, 5)
        bounds = {"T": draw.randint(0, 20), "B": draw.randint(0, 20)}
        assert worth(term(made), bounds) == made.evaluate(lambda symbol, b=bounds: b[symbol.name])  # type: ignore[misc]


def moving() -> pr.Program:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    y = pr.recurrent((3,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.9 * y + 0.1 * x[t + 1]
    late = pr.exp(y[T - 1])
    return pr.compile({"late": late, "mean": y[0:T].mean(0)}, backend="numpy")


def test_lifetimes_hold_every_use() -> None:
    data = gather(moving())
    blocks: list[Any] = []

    def visit(items: list[Any], loops: tuple[Any, ...]) -> None:
        for item in items:
            if item["kind"] == "block":
                blocks.append((item, loops))
            else:
                visit(item["body"], (*loops, item))

    visit(data["schedule"], ())
    assert [block["number"] for block, _ in blocks] == list(range(data["blocks"]))
    for place in data["places"]:
        used = [b["number"] for b, _ in blocks if place["name"] in (*b["reads"], *b["writes"])]
        assert used, place["name"]
        assert place["first"] <= min(used)
        assert place["last"] >= max(used)
    carried = next(place for place in data["places"] if place["name"] == "y")
    inside = [block["number"] for block, loops in blocks if loops]
    assert carried["first"] <= min(inside)
    assert carried["last"] >= max(inside)
    assert next(p for p in data["places"] if p["kind"] == "output")["last"] == data["blocks"] - 1


def test_the_bytes_are_those_of_the_plan() -> None:
    program = moving()
    program(x=np.ones((7, 3)))
    data = gather(program)
    assert {bound["name"]: bound["value"] for bound in data["bounds"]} == {"T": 7}
    assert sum(worth(p["bytes"], {"T": 7}) for p in data["places"]) == program.memory.bytes({"T": 7})


def test_source_lines_cannot_end_the_script(tmp_path: Path) -> None:
    page = written({"title": "</script><b>", "files": [{"lines": [[1, "'</script>' <!--"]]}]})
    assert page.count("</script>") == 2
    text = page.split('id="data">')[1].split("</script>")[0]
    assert json.loads(text)["files"][0]["lines"][0][1] == "'</script>' <!--"


MESH = """
import jax, numpy as np, polyrhythm as pr
from polyrhythm.runtime.report import gather
b, B = pr.dim("b")
x, w = pr.input("x", (8,), (b,)), pr.input("w", (8, 8))
mesh = jax.make_mesh((2,), ("data",))
program = pr.compile((x @ w)[0:B].mean(0), mesh=mesh, shard={b: "data"})
program(x=np.ones((4, 8), "float32"), w=np.eye(8, dtype="float32"))
print(gather(program)["collectives"])
"""


def test_what_devices_say_to_each_other_is_shown() -> None:
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ran = subprocess.run([sys.executable, "-c", MESH], capture_output=True, text=True, env=flags)
    assert ran.returncode == 0, ran.stderr
    assert "all-reduce" in ran.stdout
    assert "2 devices" in ran.stdout


SCRIPT = """
import sys
import polyrhythm as pr
t, T = pr.dim("t")
y = pr.recurrent((), (t,))
y[0] = 0.0
y[t + 1] = y + 1
for count in map(int, sys.argv[1:]):
    print(pr.compile(y[T - 1] * count, backend="numpy")(bounds={T: 500}))
"""


@pytest.mark.parametrize("counts", [(), (1,), (1, 2)])
def test_a_script_is_reported(tmp_path: Path, counts: tuple[int, ...]) -> None:
    script, page = tmp_path / "script.py", tmp_path / "pages" / "page.html"
    script.write_text(SCRIPT, encoding="utf-8")
    ran = CliRunner().invoke(app, ["report", "--output", str(page), str(script), *map(str, counts)])
    assert ran.exit_code == (0 if counts else 1), ran.output
    pages = [page] if len(counts) == 1 else [page.with_stem(f"page-{n + 1}") for n in range(len(counts))]
    for made, count in zip(pages, counts, strict=True):
        assert str(made) in ran.output
        assert str(499.0 * count) in ran.output
        assert "y[t + 1] = y + 1" in made.read_text(encoding="utf-8")
        assert '"profile":{"seconds"' in made.read_text(encoding="utf-8")
    if not counts:
        assert "compiles no program" in ran.output
