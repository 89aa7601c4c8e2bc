"""Products that may become our kernel mean what `dot_general` means, whatever lanes add to them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product as every
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import polyrhythm as pr
from polyrhythm.compiler.backends.jax.products import choose

SLOW = pytest.mark.slow

# The contracted axes of both operands and their batch axes, and the shapes of both.
FORMS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "scores": ((((2,), (2,)), ((0,), (0,))), (3, 2, 5), (3, 7, 5)),
    "values": ((((2,), (1,)), ((0,), (0,))), (3, 2, 7), (3, 7, 5)),
    "steps first": ((((1,), (3,)), ((0,), (1,))), (3, 5), (7, 3, 1, 5)),
    "two batch axes, in another order": ((((2,), (3,)), ((0, 1), (1, 0))), (3, 4, 5), (4, 3, 7, 5)),
    "two contracted axes, in another order": ((((1, 3), (3, 2)), ((0,), (0,))), (3, 5, 2, 6), (3, 7, 6, 5)),
    "two contracted axes, first": ((((1, 2), (2, 1)), ((0,), (0,))), (3, 5, 6), (3, 6, 5, 7)),
    "contracted axes apart": ((((1, 2), (1, 3)), ((0,), (0,))), (3, 5, 6), (3, 5, 7, 6)),
    "no batch": ((((1,), (0,)), ((), ())), (3, 5), (5, 7)),
    "nothing of the matrix is left": ((((1,), (1,)), ((0,), (0,))), (3, 5), (3, 5)),
}


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LEAST", 0)
    monkeypatch.setattr(choose, "LEAST_BATCH", 0)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype("float32")


def first_of(form: str) -> int:
    """The first axis of the matrices of a form."""
    dimensions, _, shape = FORMS[form]
    return next(axis for axis in range(len(shape)) if axis not in dimensions[1][1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", ml_dtypes.bfloat16], ids=str)
def test_a_product_is_a_dot(form: str, dtype: Any) -> None:
    dimensions, *shapes = FORMS[form]
    with jax.enable_x64(True):
        a, b = (jnp.asarray(normal(*shape).astype(dtype)) for shape in shapes)
        wide = np.float64 if dtype == "float64" else np.float32
        found = jax.jit(lambda a, b: choose.product(a, b, dimensions, wide))(a, b)
        wanted = lax.dot_general(a, b, dimensions, preferred_element_type=wide)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("form", "kernels"),
    [(form, 0 if form == "contracted axes apart" else 1) for form in FORMS],
)
def test_which_forms_are_the_kernel(form: str, kernels: int) -> None:
    dimensions, *shapes = FORMS[form]
    made = jax.jit(lambda a, b: choose.product(a, b, dimensions, np.float32))
    text = made.lower(*(normal(*shape) for shape in shapes)).as_text()
    assert text.count("@polyrhythm_skinny") == kernels


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [0, 1, 4, 5])
def test_lengths_spare_work_and_change_nothing(form: str, length: int) -> None:
    """The caller has put zeros into what is contracted; what else lies beyond a length is not looked at."""
    dimensions, *shapes = FORMS[form]
    a, b = (normal(*shape) for shape in shapes)
    axis = first_of(form)
    beyond = [slice(None)] * b.ndim
    beyond[axis] = slice(length, None)
    b[tuple(beyond)] = 0.0
    made = jax.jit(lambda a, b, n: choose.product(a, b, dimensions, np.float32, (axis, n)))
    wanted = lax.dot_general(a, b, dimensions)
    np.testing.assert_allclose(made(a, b, jnp.int32(length)), wanted, rtol=1e-4, atol=1e-4)


def shared_out(*axes: Iterable[Any], one_in: int) -> list[Any]:
    """All combinations, so many of them in the quick lane: each value of an axis comes with several of the others."""
    places = [list(enumerate(axis)) for axis in axes]
    return [
        pytest.param(*(value for _, value in chosen), marks=[] if sum(n for n, _ in chosen) % one_in == 0 else SLOW)
        for chosen in every(*places)
    ]


LANES = [lanes for lanes in every((None, 0, 1), (None, 0, 2), (None, 0)) if lanes != (None, None, None)]


@pytest.mark.parametrize(("form", "lanes"), shared_out(FORMS, LANES, one_in=3))
def test_lanes(form: str, lanes: tuple[int | None, int | None, int | None]) -> None:
    """Lanes of the rows, the matrices and the lengths, in all combinations, and twice within each other."""
    dimensions, *shapes = FORMS[form]
    size, axis = 2, first_of(form)
    arrays = []
    for shape, lane in zip(shapes, lanes[:2], strict=True):
        at = None if lane is None else min(lane, len(shape))
        arrays.append(normal(*shape) if at is None else normal(*shape[:at], size, *shape[at:]))
    where = [None if lane is None else min(lane, len(shape)) for lane, shape in zip(lanes, (*shapes, ()), strict=False)]
    full = shapes[1][axis]
    lengths = jnp.int32(full) if lanes[2] is None else jnp.full(size, full, jnp.int32)

    def own(a: Any, b: Any, n: Any) -> Any:
        return choose.product(a, b, dimensions, np.float32, (axis, n))

    def plain(a: Any, b: Any, n: Any) -> Any:
        return lax.dot_general(a, b, dimensions)

    found, wanted = (jax.jit(jax.vmap(f, where, axis_size=size))(*arrays, lengths) for f in (own, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    outer = jax.jit(jax.vmap(jax.vmap(own, where, axis_size=size), (None, None, None), axis_size=2))
    np.testing.assert_allclose(outer(*arrays, lengths)[1], wanted, rtol=1e-4, atol=1e-4)
    both = [normal(3, *array.shape) for array in arrays]
    twice = jax.jit(jax.vmap(jax.vmap(own, where, axis_size=size), (0, 0, None)))(*both, lengths)
    for n in range(3):
        want = jax.vmap(plain, where, axis_size=size)(both[0][n], both[1][n], lengths)
        np.testing.assert_allclose(twice[n], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("contracted axes apart",)])
@pytest.mark.parametrize("shares", [False, True], ids=["matrices of their own", "one matrix"])
def test_lanes_with_lengths_of_their_own(form: str, shares: bool) -> None:
    """Rows are zero beyond a lane's length where that is contracted; matrices of its own are garbage there."""
    dimensions, *shapes = FORMS[form]
    (over_a, over_b), _ = dimensions
    axis, lengths = first_of(form), (2, 4)
    a, b = normal(2, *shapes[0]), normal(*shapes[1]) if shares else normal(2, *shapes[1])
    wanted = []
    for lane, length in enumerate(lengths):
        if axis in over_b:
            beyond: list[Any] = [slice(None)] * a[lane].ndim
            beyond[over_a[over_b.index(axis)]] = slice(length, None)
            a[lane][tuple(beyond)] = 0
        wanted.append(np.asarray(lax.dot_general(a[lane], b if shares else b[lane], dimensions)))
        if not shares:
            beyond = [slice(None)] * b[lane].ndim
            beyond[axis] = slice(length, None)
            b[lane][tuple(beyond)] = 1e6 if axis in over_b else np.nan

    def own(a: Any, b: Any, n: Any) -> Any:
        return choose.product(a, b, dimensions, np.float32, (axis, n))

    found = np.asarray(jax.jit(jax.vmap(own, (0, None if shares else 0, 0)))(a, b, jnp.array(lengths, jnp.int32)))
    for lane, length in enumerate(lengths):
        # A result that keeps the axis is garbage beyond the length.
        kept = [slice(None)] * found[lane].ndim
        if axis not in over_b:
            free = [i for i in range(len(shapes[1])) if i not in over_b and i not in dimensions[1][1]]
            kept[found[lane].ndim - len(free) + free.index(axis)] = slice(length)
        np.testing.assert_allclose(found[lane][tuple(kept)], wanted[lane][tuple(kept)], rtol=1e-4, atol=1e-4)


def test_a_length_is_made_use_of() -> None:
    """Nobody has masked what lies beyond it: a sum that is finite has not read it."""
    dimensions, *shapes = FORMS["values"]
    a, b = (normal(*shape) for shape in shapes)
    b[:, 3:] = np.nan
    found = jax.jit(lambda a, b, n: choose.product(a, b, dimensions, np.float32, (1, n)))(a, b, jnp.int32(3))
    np.testing.assert_allclose(found, np.einsum("brs,bsd->brd", a[:, :, :3], b[:, :3]), rtol=1e-4, atol=1e-4)


def test_a_program_that_leaves_the_process_has_products_of_xla() -> None:
    dimensions, *shapes = FORMS["scores"]
    made = jax.jit(lambda a, b: choose.product(a, b, dimensions, np.float32))
    a, b = (normal(*shape) for shape in shapes)
    assert "@polyrhythm_skinny" in made.lower(a, b).as_text()
    for platforms in (["cpu"], ["cuda"]):
        text = jax.export.export(made, platforms=platforms)(a, b).mlir_module()
        assert "@polyrhythm_skinny" not in text
        assert "dot_general" in text


@pytest.mark.parametrize("form", FORMS)
def test_slopes(form: str) -> None:
    dimensions, *shapes = FORMS[form]
    arrays = [normal(*shape) for shape in shapes]

    def own(a: Any, b: Any) -> Any:
        return jnp.sin(choose.product(a, b, dimensions, np.float32)).sum()

    def plain(a: Any, b: Any) -> Any:
        return jnp.sin(lax.dot_general(a, b, dimensions)).sum()

    for which in (0, 1, (0, 1)):
        found, wanted = (jax.jit(jax.grad(f, which))(*arrays) for f in (own, plain))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3), found, wanted)


@pytest.mark.parametrize(
    ("batch", "group", "seen", "dtype"),
    shared_out([1, 2, 5], [1, 3], ["all", "window", "stride", "future"], ["float32", "bfloat16"], one_in=3),
)
def test_attention_in_every_pattern(batch: int, group: int, seen: str, dtype: str) -> None:
    """Texts are a dim or an axis; keys are few, so that every product is the kernel if it takes it."""
    t, T = pr.dim("t")
    heads, depth = 2, 4
    steps: Any = {
        "all": slice(0, t + 1),
        "window": slice(pr.max(0, t - 2), t + 1),
        "stride": slice(t % 2, t + 1, 2),
        "future": slice(t, T),
    }[seen]
    b = pr.dim("b")[0]
    outputs = {}
    for name, dims, shape, letter in (("axis", (t,), (batch,), "b"), ("dim", (b, t), (), "")):
        q = pr.input(f"q_{name}", (*shape, heads, group, depth), dims, dtype)
        k, v = (pr.input(f"{what}_{name}", (*shape, heads, depth), dims, dtype) for what in "kv")
        at: Any = {t: steps}
        scores = pr.einsum(f"{letter}hgd,s{letter}hd->{letter}hgs", q, k[at])
        outputs[name] = pr.einsum(f"{letter}hgs,s{letter}hd->{letter}hgd", scores.softmax(-1), v[at])
    random = np.random.default_rng(batch)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    given: dict[str, Any] = {}
    for what, own in (("q", (group,)), ("k", ()), ("v", ())):
        given[f"{what}_axis"] = random.normal(size=(6, batch, heads, *own, depth)).astype(kind)
        given[f"{what}_dim"] = given[f"{what}_axis"].swapaxes(0, 1)
    expected = pr.evaluate(outputs, given)
    found = pr.compile(outputs)(**given)
    for name in outputs:
        near = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(
            np.asarray(found[name], "float64"), np.asarray(expected[name], "float64"), rtol=near, atol=near
        )
