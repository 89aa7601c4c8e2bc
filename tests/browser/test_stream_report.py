"""The page of a stream run, as a browser shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.streams.moe import MoeShape, build_moe
from benchmarks.streams.traces import synthetic_routing
from polyrhythm.stream import Hardware, report, simulate, tile


def test_the_page_shows_timeline_metrics_roofline_and_graph(page: Any, tmp_path: Path) -> None:
    routing = synthetic_routing((11, 2, 9, 10, 3, 4, 5, 6, 7, 7), 16)
    layer = build_moe(MoeShape(64, 128, 10, 4), routing, [tile("token", dynamic=True), tile("intermediate", 64)])
    run = simulate(layer, Hardware(compute=512, fifo_depth=64), functional=False, tracing=True)
    path = tmp_path / "run.html"
    path.write_text(report(run, "Experts <10>"))
    page.goto(path.as_uri())
    assert page.title() == "Experts <10>"
    for name in ("timeline", "roofline", "graph"):
        box = page.locator(f"#{name} svg").bounding_box()
        assert box["width"] > 300
        assert box["height"] > 100
    shown = page.locator("#timeline svg text").all_text_contents()
    assert any("load gate ×10" in line for line in shown), "copies of a node are one line"
    assert any("einsum gate ×10" in line for line in shown), "compute is shown beside loads"
    assert "sum_i" in page.locator("#metrics").inner_text()
    assert f"{run.cycles:,} cycles" in page.locator("#bottleneck").inner_text()
    assert page.locator("#nodes tr").count() > 10
    page.locator("nav a", has_text="roofline").click()
    assert page.url.endswith("#roofline")
