"""Short loops inside longer ones are written out, with separate arrays for what they index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.legality import IllegalProgramError, check_program
from polyrhythm.compiler.loops.ir import For, If, Item, LoopProgram, walk
from polyrhythm.compiler.loops.unroll import expanded, marked

WIDTH = 96  # a weight of 36 kB

t, T = pr.dim("t")
l, L = pr.dim("l")


def layers(extra: Any = None, width: int = WIDTH) -> dict[str, pr.Tensor]:
    """A stack of layers at every step, fed by its top one step before; each layer adds what it had then."""
    h = pr.recurrent((width,), (t, (l, L + 1)))
    w = pr.input("w", (width, width), (l,))
    before = pr.where(t > 0, h[pr.max(t - 1, 0), l], 0.0)
    h[t, 0] = pr.input("x", (width,), (t,)) + pr.where(t > 0, h[pr.max(t - 1, 0), L], 0.0)
    h[t, l + 1] = pr.tanh(h @ w + before)
    found = {"top": h[t, L]}
    return found if extra is None else found | extra(h)


def given(steps: int = 5, count: int = 3, width: int = WIDTH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(count, width, width)).astype("float32") / width**0.5
    return {"w": w, "x": rng.normal(size=(steps, width)).astype("float32")}


def loops_of(program: LoopProgram) -> list[For]:
    return [item for item in walk(program.body) if isinstance(item, For)]


def unrolled(program: LoopProgram) -> list[For]:
    return [loop for loop in loops_of(program) if loop.unrolled]


def agrees(outputs: Any, inputs: dict[str, np.ndarray], program: pr.Program, bounds: Any = None) -> None:
    want = pr.evaluate(outputs, inputs, bounds=bounds)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
        program(**dict[str, Any](inputs)),
        want,
    )


def test_a_loop_that_takes_large_slices_inside_a_longer_one_is_unrolled() -> None:
    outputs = layers()
    program = pr.compile(outputs, bounds={L: 3})
    assert unrolled(program.compiled.loops)
    places = program.backend.program.places
    assert {name for name in places if name.startswith("w[")} == {"w[0]", "w[1]", "w[2]"}
    assert "unrolled" in program.schedule
    agrees(outputs, given(), program, {L: 3})


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("count", [1, 4])
def test_any_number_of_layers_and_steps(count: int, steps: int) -> None:
    outputs = layers()
    agrees(outputs, given(steps, count), pr.compile(outputs, bounds={L: count}), {L: count})


def prompted(window: int | None) -> tuple[pr.Tensor, Any]:
    """Layers that see the steps before, of which the first P are given, as the prompt of a language model."""
    P = pr.size("P", max=T)
    given = pr.recurrent((WIDTH,), (t,))
    h = pr.recurrent((WIDTH,), ((l, L + 1), t))
    h[0] = given
    k = h[l, t] @ pr.input("w", (WIDTH, WIDTH), (l,))
    seen = k[l, 0 : t + 1] if window is None else pr.window(k, t, window)
    h[l + 1] = h[l, t] + pr.tanh(pr.softmax(seen @ h[l, t]) @ seen)
    given[t < P] = pr.input("x", (WIDTH,), (t,))
    given[t >= P] = pr.tanh(h[L, t - 1])
    return given, P


@pytest.mark.parametrize("window", [None, 3])
def test_a_loop_over_layers_that_runs_once_in_a_call_stays_a_loop(window: int | None) -> None:
    """And what it stores for the loops that are written out is in arrays of their own after it."""
    output, P = prompted(window)
    program = pr.compile(output, bounds={L: 3})
    assert len([loop for loop in unrolled(program.compiled.loops) if len(loop.known or ()) == 3]) > 1
    layers_left = [loop for loop in loops_of(program.backend.program) if loop.known == range(3)]
    assert len(layers_left) == 1
    places = program.backend.program.places
    assert {name for name in places if name.startswith("k[")} == {"k[0, ]", "k[1, ]", "k[2, ]"}
    for steps, prompt in ((9, 4), (5, 5), (6, 1)):
        inputs = given(steps)
        inputs["x"][prompt:] = np.nan  # nobody reads what is not given
        want = pr.evaluate(output, inputs, bounds={L: 3, P: prompt})
        np.testing.assert_allclose(program(bounds={P: prompt}, **dict[str, Any](inputs)), want, atol=1e-4)


def test_weights_that_are_given_whole_and_in_parts_are_counted_once() -> None:
    output, P = prompted(None)
    program, inputs = pr.compile(output, bounds={L: 3}), given(9)
    program(bounds={P: 4}, **dict[str, Any](inputs))
    (made,) = program.backend.compilations
    assert inputs["w"].nbytes < made.allocated < 2 * inputs["w"].nbytes


def test_small_slices_or_unknown_numbers_stay_loops() -> None:
    assert not unrolled(pr.compile(layers(width=4), bounds={L: 3}).compiled.loops)
    assert not unrolled(pr.compile(layers()).compiled.loops)


def test_what_steps_store_and_use_at_once_is_no_slice_of_a_stack() -> None:
    """A rollout: each step makes a large image, looks at it, and keeps it for what comes after all steps."""
    i, I = pr.dim("i")
    state = pr.recurrent((WIDTH,), (i, (t, T + 1)))
    state[0, 0] = pr.input("x", (WIDTH,))
    state[i + 1, 0] = state[i, T]
    image = state.axes[:, None] * pr.cos(state.axes[None, :])
    state[i, t + 1] = pr.tanh(0.9 * state + pr.sin(image).sum(1) / WIDTH)
    whole = image[i, 0:T]
    later = pr.recurrent((), (i, t))  # and back, as returns are computed
    later[t == T - 1] = 0.0
    later[t < T - 1] = pr.tanh(image.max() + later[i, t + 1])
    outputs = {"spread": pr.square(whole - whole.mean(0)).sum(), "later": later[i, 0]}
    program = pr.compile(outputs, bounds={T: 6})
    assert "i" in [loop.counter.name for loop in loops_of(program.compiled.loops) if not loop.parallel]
    assert not unrolled(program.compiled.loops)
    x = np.random.default_rng(0).normal(size=WIDTH).astype("float32")
    found, wanted = program(x=x, bounds={I: 2}), pr.evaluate(outputs, {"x": x}, bounds={T: 6, I: 2})
    for name, want in wanted.items():
        np.testing.assert_allclose(found[name], want, rtol=1e-4, err_msg=name)


def test_what_is_written_out_is_proved_right() -> None:
    """The checker accepts the expanded program too, part by part."""
    for extra in (None, lambda h: {"all": h}, lambda h: {"mean": h[t, 0 : L + 1].mean(0)}):
        compiled = pr.compile(layers(extra), bounds={L: 3}).compiled
        assert unrolled(compiled.loops)
        written_out = expanded(compiled.loops)
        assert not unrolled(written_out)
        check_program(compiled.graph, written_out)


def test_a_wrong_part_is_found() -> None:
    compiled = pr.compile(layers(), bounds={L: 3}).compiled
    program = expanded(compiled.loops)
    places = dict(program.places)
    assert places["w[1]"].part_of == ("w", (1,))
    places["w[1]"] = replace(places["w[1]"], part_of=("w", (2,)))
    with pytest.raises(IllegalProgramError):
        check_program(compiled.graph, replace(program, places=places))


def test_separate_slots_that_a_loop_counts_through_are_found() -> None:
    compiled = pr.compile(layers(), bounds={L: 3}).compiled
    kept = {name for name, place in compiled.loops.places.items() if place.separate and place.kind == "buffer"}
    assert kept

    def rolled(items: tuple[Item, ...]) -> tuple[Item, ...]:
        found: list[Item] = []
        for item in items:
            inside = replace(item, body=rolled(item.body)) if isinstance(item, (For, If)) else item
            found.append(replace(inside, unrolled=False) if isinstance(inside, For) else inside)
        return tuple(found)

    wrong = replace(compiled.loops, body=rolled(compiled.loops.body))
    with pytest.raises(IllegalProgramError, match="separate"):
        check_program(compiled.graph, wrong)


def test_slots_that_are_read_together_stay_together() -> None:
    outputs = layers(lambda h: {"mean": h[t, 0 : L + 1].mean(0)})
    program = pr.compile(outputs, bounds={L: 3})
    assert program.compiled.loops.places["h"].separate == ()
    agrees(outputs, given(), program, {L: 3})


def test_outputs_over_layers_come_back_whole() -> None:
    outputs = layers(lambda h: {"all": h})
    agrees(outputs, given(), pr.compile(outputs, bounds={L: 3}), {L: 3})


def test_an_outermost_loop_over_the_same_weights() -> None:
    """It may stay a loop, which reads the whole input; what it shares with the unrolled one it keeps separate."""
    w = pr.input("w", (WIDTH, WIDTH), (l,))
    first = pr.recurrent((WIDTH,), ((l, L + 1),))
    first[0] = 1.0
    first[l + 1] = pr.tanh(first @ w)
    h = pr.recurrent((WIDTH,), ((t, T + 1), (l, L + 1)))
    h[0, l] = first[l]
    h[0, L] = first[L]
    h[t + 1, 0] = pr.input("x", (WIDTH,), (t,)) + h[t, L]
    h[t + 1, l + 1] = pr.tanh(h[t + 1, l] @ w + h[t, l])
    outputs = {"top": h[T, L]}
    program = pr.compile(outputs, bounds={L: 3})
    assert unrolled(program.compiled.loops)
    check_program(program.compiled.graph, expanded(program.compiled.loops))
    agrees(outputs, given(), program, {L: 3})


def test_too_large_programs_stay_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrhythm.compiler.loops.unroll.MOST_OPERATIONS", 10)
    assert not unrolled(pr.compile(layers(), bounds={L: 3}).compiled.loops)


def test_marking_again_changes_nothing() -> None:
    program = pr.compile(layers(), bounds={L: 3}).compiled.loops
    assert marked(program) == program


def test_streams_and_traced_functions() -> None:
    outputs, inputs = layers(), given()
    program = pr.compile(outputs, bounds={L: 3})
    want = pr.evaluate(outputs, inputs, bounds={L: 3})["top"]
    steps = [step["top"] for step in program.stream(over=t, **dict[str, Any](inputs))]
    np.testing.assert_allclose(np.stack(steps), want, atol=1e-4)
    fed = [step["top"] for step in program.stream(over=t, w=inputs["w"], x=iter(inputs["x"]), bounds={T: 5})]
    np.testing.assert_allclose(np.stack(fed), want, atol=1e-4)
    fed = [step["top"] for step in program.stream(over=t, w=iter(inputs["w"]), x=inputs["x"])]
    np.testing.assert_allclose(np.stack(fed), want, atol=1e-4)
    traced = jax.jit(lambda w, x: program(w=w, x=x)["top"])(inputs["w"], inputs["x"])
    np.testing.assert_allclose(traced, want, atol=1e-4)


def test_weights_of_a_layer_follow_the_array_that_is_given() -> None:
    """Parts of an array are kept between calls; another array has parts of its own."""
    outputs, inputs = layers(), given()
    program = pr.compile(outputs, bounds={L: 3})
    for scale in (1.0, 0.5, 1.0):
        changed = {"x": jax.numpy.asarray(inputs["x"]), "w": jax.numpy.asarray(inputs["w"] * np.float32(scale))}
        for _ in range(2):
            have = program(**dict[str, Any](changed))["top"]
        want = pr.evaluate(outputs, {n: np.asarray(v) for n, v in changed.items()}, bounds={L: 3})["top"]
        np.testing.assert_allclose(have, want, atol=1e-4)


def test_a_piece_of_a_longer_loop_is_not_unrolled() -> None:
    """The first iterations of a loop are a loop of known length, but all of it would not be written out."""
    s, _ = pr.dim("s")
    h, late = (pr.recurrent((WIDTH,), (s, (l, L + 1))) for _ in range(2))
    w = pr.input("w", (WIDTH, WIDTH), (l,))
    h[s, 0] = pr.where(s > 0, h[pr.max(s - 1, 0), L], 0.0) + pr.input("x", (WIDTH,), (s,))
    h[s, l + 1] = pr.tanh(h @ w)
    late[s, 0] = 0.0
    late[s, l + 1] = late * 0.5 + pr.where(l + 3 <= L, h[s, l + 3], 1.0) @ w
    outputs = {"late": late[s, L]}
    with pr.settings(without=("hoist",)):
        body = pr.compile(outputs).compiled.loops
    assert any(loop.known is not None and len(loop.known) > 1 for loop in loops_of(body)), "a prologue"
    assert not unrolled(body)
    with pr.settings(without=("hoist",)):
        fixed = pr.compile(outputs, bounds={L: 4})
    assert unrolled(fixed.compiled.loops)
    agrees(outputs, given(count=4), fixed)
