"""Pictures of graphs, and what notebooks show."""

from __future__ import annotations

import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import nn


def program(backend: str = "numpy") -> tuple[pr.Program, pr.Bound]:
    t, T = pr.dim("t")
    x = pr.input("x", (3,), (t,))
    h = pr.recurrent((3,), (t,))
    h[0] = x[0]
    h[t + 1] = pr.tanh(nn.Linear(3, 3, rng=np.random.default_rng(0))(h)) + x[t + 1]
    return pr.compile({"last": h[T - 1]}, backend=backend), T


def test_the_graph_as_text_and_picture(tmp_path: Path) -> None:
    graph = program()[0].graph
    assert '"x" -> "h" [label="[0]"]' in graph.dot
    assert 'label="nn/layers.py: Linear"' in graph.dot
    assert graph.save(tmp_path / "graph.dot").read_text(encoding="utf-8") == graph.dot
    if shutil.which("dot") is None:
        assert not os.environ.get("POLYRHYTHM_GRAPHVIZ"), "continuous integration has graphviz"
        with pytest.raises(pr.errors.UnsupportedError, match="apt-get install graphviz"):
            _ = graph.svg
        assert graph._repr_html_().startswith("<pre>digraph")
    else:
        drawn = ET.fromstring(graph.save(tmp_path / "graph.svg").read_text(encoding="utf-8"))
        assert drawn.tag.endswith("svg")
        assert graph._repr_html_().startswith("<svg")


def test_a_picture_without_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(pr.errors.UnsupportedError, match="fix: apt-get install graphviz"):
        _ = program()[0].graph.svg


def test_notebooks_show_programs_plans_and_tensors() -> None:
    made, _ = program()
    t, _T = pr.dim("t")
    for text in (made._repr_html_(), made.memory._repr_html_()):
        ET.fromstring(f"<div>{text.replace('&rarr;', '')}</div>".replace("<details open>", "<details>"))
    assert "for t in" in made._repr_html_()
    assert "<td>h</td>" in made.memory._repr_html_()
    shown = pr.input("x", (2,), (t,))._repr_html_()
    assert "float32[2] over t" in shown
    assert "test_picture.py" in shown
