"""The report of a program, opened, clicked and read as a user would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import polyrhythm as pr
from polyrhythm import llm, nn, optim, rl
from polyrhythm.cli import app


def window_decoder() -> pr.Program:
    t, T = pr.dim("t")
    start, w_k, w_v = pr.input("start", (8,)), pr.input("w_k", (8, 8)), pr.input("w_v", (8, 8))
    h = pr.recurrent((8,), (t,))
    keys, values = h @ w_k, h @ w_v
    weights = pr.softmax(pr.window(keys, t, 4) @ h)
    h[0] = start
    h[t + 1] = pr.tanh(weights @ pr.window(values, t, 4))
    return pr.compile({"all": h, "last": h[T - 1]}, backend="numpy")


def line_of(text: str) -> str:
    """The key of a line of this file in the page."""
    lines = Path(__file__).read_text(encoding="utf-8").split("\n")
    return f"0:{next(n for n, line in enumerate(lines, 1) if line.strip() == text)}"


def opened(page: Any, program: pr.Program, folder: Path) -> Any:
    page.goto(program.report(folder / "report.html").as_uri())
    return page


def test_a_line_lights_up_its_nodes_loops_and_buffers(page: Any, tmp_path: Path) -> None:
    opened(page, window_decoder(), tmp_path)
    key = line_of("keys, values = h @ w_k, h @ w_v")
    page.click(f'[data-key="{key}"]')
    assert page.locator('svg g.on[data-node="keys"]').count() == 1
    assert page.locator('svg g.on[data-node="h"]').count() == 0
    assert page.locator("#schedule .block.on").count() == 2
    assert page.locator("#schedule summary.on").count() == 1
    assert page.locator("#storage .row.on").all_inner_texts()[0].split()[0] in ("keys", "values")
    page.click("#clear")
    assert page.locator(".on").count() == 0


def test_a_node_lights_up_its_line_and_tells_its_definitions(page: Any, tmp_path: Path) -> None:
    opened(page, window_decoder(), tmp_path)
    page.hover('svg g[data-node="h"]')
    tip = page.inner_text("#tip")
    assert "where t == 0" in tip
    assert "h_tanh[t - 1]" in tip
    page.click('svg g[data-node="h"]')
    lines = page.locator(".code.on").all_inner_texts()
    assert any("h = pr.recurrent((8,), (t,))" in line for line in lines)
    assert any("h[t + 1] = pr.tanh" in line for line in lines)


def test_sliders_choose_bounds(page: Any, tmp_path: Path) -> None:
    program = window_decoder()
    opened(page, program, tmp_path)
    for position, steps in ((0, 1), (1000, 4096)):
        page.locator('input[data-bound="T"]').evaluate(
            f"e => {{ e.value = {position}; e.dispatchEvent(new Event('input')) }}"
        )
        page.hover('#storage [data-place="output"], #storage .row.output')
        told = page.inner_text("#tip")
        assert f"{steps * 8 * 4:,} bytes" in told, told
    page.hover('#storage [data-place="keys"]')
    told = page.inner_text("#tip")
    assert "(4 of t)" in told
    assert "128 bytes" in told
    assert "up to 3 steps later" in told


def test_loops_and_passes_fold(page: Any, tmp_path: Path) -> None:
    opened(page, window_decoder(), tmp_path)
    block = page.locator("#schedule details .block").first
    assert block.is_visible()
    page.locator("#schedule summary").first.click()
    assert not block.is_visible()
    page.click('[data-pass="fuse"] summary')
    page.wait_for_selector('[data-pass="fuse"] p')
    assert "changed nothing" in page.inner_text('[data-pass="lift"]')
    page.locator('svg g[data-group="0"] text').click()
    assert page.locator("svg g[data-node]").count() == 0


def test_the_graph_zooms_and_moves(page: Any, tmp_path: Path) -> None:
    opened(page, window_decoder(), tmp_path)
    before = page.get_attribute("#graph svg", "viewBox").split()
    box = page.locator("#graph svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 40, box["y"] + 200)
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"document.querySelector('#graph svg').getAttribute('viewBox') !== '{' '.join(before)}'")
    zoomed = page.get_attribute("#graph svg", "viewBox").split()
    assert float(zoomed[2]) < float(before[2])
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 140, box["y"] + 150)
    page.mouse.up()
    moved = page.get_attribute("#graph svg", "viewBox").split()
    assert float(moved[0]) > float(zoomed[0])
    assert moved[2] == zoomed[2]


def test_an_agent_in_its_parts(page: Any, tmp_path: Path) -> None:
    carts = rl.Arrays(rl.CartPole(), 2)
    model = rl.ActorCritic(carts.observations, carts.actions, (4,), np.random.default_rng(0))
    training = rl.ppo(carts, model, rl.PPOSettings(steps=4, epochs=1, minibatches=1))
    opened(page, pr.compile(training.outputs, bounds=training.bounds, backend="numpy"), tmp_path)
    groups = page.locator("svg g.group").all_text_contents()
    assert any("rl/ppo.py" in group for group in groups)
    assert page.locator("svg g[data-node]").count() == 0  # folded at first
    seen = page.locator("#graph svg").bounding_box()
    for box in [group.bounding_box() for group in page.locator("svg g.group").all()]:
        assert seen["x"] <= box["x"] <= box["x"] + box["width"] <= seen["x"] + seen["width"], "a group is out of sight"
    part = page.locator('.code[data-key^="p"]', has_text="rl/returns.py")
    part.first.click()
    assert page.locator("#schedule .block.on").count() >= 1
    assert page.locator("svg g.group.on").count() >= 1
    page.click("#unfold")
    assert page.locator("svg g[data-node].on").count() >= 1


def test_the_example_of_the_readme_as_a_script(page: Any, tmp_path: Path) -> None:
    readme = Path(__file__).parents[2] / "README.md"
    block = re.search(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    script = tmp_path / "first.py"
    script.write_text(block[1], encoding="utf-8")
    ran = CliRunner().invoke(app, ["report", "--output", str(tmp_path / "page.html"), str(script)])
    assert ran.exit_code == 0, ran.output
    page.goto((tmp_path / "page.html").as_uri())
    line = page.locator(".code", has_text="y[t + 1] = 0.9 * y + 0.1 * x[t + 1]")
    line.first.click()
    assert page.locator("#schedule .block.on").count() >= 1
    assert page.locator("#schedule summary.on").count() == 1
    assert page.locator('svg g.on[data-node="y"]').count() == 1
    assert page.locator("#storage .row.on").count() >= 1
    assert "profiled run" in page.inner_text("#time")
    assert "compil" in page.inner_text("body")


def test_a_language_model_with_its_cache(page: Any, tmp_path: Path) -> None:
    model = llm.load(llm.write_random(tmp_path / "model", num_hidden_layers=2), backend="numpy")
    program = model.generating().program
    opened(page, program, tmp_path)
    assert any("llm/" in group for group in page.locator("svg g.group").all_text_contents())
    told = []
    for position in (200, 1000):
        page.locator('input[data-bound="T"]').evaluate(
            f"e => {{ e.value = {position}; e.dispatchEvent(new Event('input')) }}"
        )
        page.hover('#storage [data-place="k_cache"]')
        told.append(page.inner_text("#tip"))
    sizes = [int(re.search(r"([\d,]+) bytes", tip)[1].replace(",", "")) for tip in told]  # type: ignore[index]
    assert sizes[0] < sizes[1]
    assert "all T of t" in told[0]


def test_a_training_run_with_its_times(page: Any, tmp_path: Path) -> None:
    t, T = pr.dim("t")
    i, I = pr.dim("i")
    x, goal = pr.input("x", (3,), (t,)), pr.input("goal", (2,), (t,))
    model = nn.Linear(3, 2, rng=np.random.default_rng(0))
    weights = optim.over(i, model.parameters())
    loss = ((model.using(weights)(x) - goal) ** 2).sum()[{t: slice(0, T)}].mean()
    optim.adam(i, weights, pr.grad(loss, weights), 0.05)
    program = pr.compile({"loss": loss[0:I]}, backend="numpy")
    profile = program.profile(x=np.eye(3), goal=np.ones((3, 2)), bounds={I: 30})
    assert profile.results["loss"][-1] < profile.results["loss"][0]
    opened(page, program, tmp_path)
    assert page.locator("svg.memory").count() == 1
    assert "profiled run" in page.inner_text("#time")
    heats = [text for text in page.locator("#schedule .heat").all_inner_texts() if "%" in text]
    assert heats
    part = page.locator('.code[data-key^="p"]', has_text="optim/updates.py")
    part.first.click()
    assert page.locator("#storage .row.on").count() >= 1


def test_a_thousand_blocks_open_in_a_second(page: Any, tmp_path: Path) -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (3,), (t,)), pr.input("w", (3, 3))
    outputs = []
    for number in range(250):
        h = pr.recurrent((3,), (t,))
        h[0] = x[0] * number
        h[t + 1] = pr.tanh(h @ w) + x[t + 1] * number
        outputs += [h[T - 1], h[T - 1] @ w]
    program = pr.compile(outputs, backend="numpy")
    opened(page, program, tmp_path)
    blocks = page.locator("#schedule .block").count()
    assert blocks >= 1000
    assert page.evaluate("window.readyAfter") < 1000
