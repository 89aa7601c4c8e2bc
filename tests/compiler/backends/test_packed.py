"""Products with codes: the kernel equals NumPy, whatever instructions it has, and programs never store the elements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends import native
from polyrhythm.compiler.backends.jax.products import build, kernel, packed
from polyrhythm.compiler.ir.ops import TABLE
from tests.compiler.backends.test_kernel import OTHERS

Matrix = tuple[np.ndarray, ...]


def matrix(bits: int, outer: int, inner: int, block: int, offsets: bool, lead: tuple[int, ...] = ()) -> Matrix:
    rng = np.random.default_rng((bits, outer, inner, block, offsets))
    low, high, dtype = (-128, 128, "int8") if bits == 8 else (0, 256, "uint8")
    codes = rng.integers(low, high, (*lead, outer, inner * bits // 8)).astype(dtype)
    factors = [rng.normal(size=(*lead, outer, inner // block)).astype("float16") for _ in range(1 + offsets)]
    return (codes, *factors)


def elements(own: Matrix) -> np.ndarray:
    return TABLE["dequantize"].numpy(*own, dtype=np.dtype("float32"))


CASES = [
    (8, 5, 16, 16),
    (8, 70, 48, 16),
    (8, 33, 96, 32),
    (8, 9, 80, 80),
    (8, 5, 4800, 16),
    (4, 3, 32, 32),
    (4, 70, 128, 32),
    (4, 7, 96, 96),
]


@pytest.mark.parametrize("offsets", [False, True], ids=["scales", "offsets"])
@pytest.mark.parametrize(("bits", "outer", "inner", "block"), CASES)
def test_the_kernel_equals_numpy(bits: int, outer: int, inner: int, block: int, offsets: bool) -> None:
    own = matrix(bits, outer, inner, block, offsets)
    for rows in (1, 2, 3, 4, 5, 8, 9, 23, kernel.MOST_ROWS + 1, 130):
        x = np.random.default_rng(rows).normal(size=(rows, inner)).astype("float32")
        found = packed.product(jnp.asarray(x), *map(jnp.asarray, own))
        wanted = x.astype("float64") @ elements(own).astype("float64").T
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_elements_of_a_matrix_that_is_too_large_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [jnp.asarray(part) for part in matrix(4, 70, 128, 32, True)]
    x = np.random.default_rng(1).normal(size=(packed.FEW + 1, 128)).astype("float32")
    texts = []
    for largest in (packed.LARGE, 0):
        monkeypatch.setattr(packed, "LARGE", largest)
        lowered = jax.jit(lambda x, own: packed.product(x, *own)).lower(x, own)
        texts.append(lowered.as_text())
        found = lowered.compile()(x, own)
        np.testing.assert_allclose(found, x @ elements(tuple(map(np.asarray, own))).T, rtol=1e-4, atol=1e-3)
    assert ["packed_elements" in text for text in texts] == [True, False]


@pytest.mark.parametrize("which", OTHERS)
def test_other_instructions(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "FLAGS", ("-O2", "-std=gnu11", "-fPIC", "-shared", *OTHERS[which]))
    monkeypatch.setattr(build, "_begun", {})
    library = build.built.__wrapped__("packed.c").library
    assert library is not None
    name = f"packed {which}"
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library.packed_product), platform="cpu")
    for bits, outer, inner, block in CASES:
        for offsets in (False, True):
            own = matrix(bits, outer, inner, block, offsets)
            own[1].flat[0] = 6e-8  # a number that has no exponent of its own
            for rows in (5, 30):
                x = np.random.default_rng(0).normal(size=(rows, inner)).astype("float32")
                call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((rows, outer), jnp.float32))
                wanted = x.astype("float64") @ elements(own).astype("float64").T
                np.testing.assert_allclose(call(x, *own), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_a_large_matrix_is_shared_among_threads() -> None:
    own = matrix(4, 3000, 512, 32, True)
    x = np.random.default_rng(0).normal(size=(2, 512)).astype("float32")
    wanted = x.astype("float64") @ elements(own).astype("float64").T
    found = packed.product(jnp.asarray(x), *map(jnp.asarray, own))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def test_operands_that_do_not_belong_together_are_refused() -> None:
    codes, scales = matrix(8, 4, 32, 16, False)
    call = jax.ffi.ffi_call("polyrhythm_packed_product", jax.ShapeDtypeStruct((1, 4), jnp.float32))
    x = np.zeros((1, 32), "float32")
    assert kernel.missing_packed() is None
    for wrong in (
        (x, codes, scales[:, :1].repeat(3, 1)),
        (x, codes, scales.astype("float32")),
        (x[:, :16], codes, scales),
    ):
        with pytest.raises(Exception, match="packed rows: "):
            call(*wrong)


def programs() -> dict[str, Any]:
    """Products that read codes as they lie, and some that cannot; in layers, recurrences and gradients."""
    l, L = pr.dim("l")
    t, T = pr.dim("t")
    x = pr.input("x", (64,), (t,))
    codes, scales, offsets = (
        pr.input(name, (64, size), (l,), dtype)
        for name, size, dtype in (("codes", 32, "uint8"), ("scales", 2, "float16"), ("offsets", 2, "float16"))
    )
    w = pr.dequantize(codes, scales, offsets)
    h = pr.recurrent((64,), ((l, L + 1), t))
    h[0] = x
    h[l + 1] = pr.tanh(pr.einsum("i,oi->o", h, w))
    s = pr.recurrent((64,), ((t, T + 1),))
    s[0] = 0.0
    s[t + 1] = pr.tanh(pr.einsum("i,oi->o", s, w[0]) + x)
    loss = (h[L, 0:T] ** 2).sum()
    return {
        "stack": h[L, 0:T],
        "state": s[T],
        "rows": pr.take(w, pr.value(t) * 9, 0)[0:L, 0:T],
        "transposed": pr.einsum("o,oi->i", x, w)[0:L, 0:T],
        "outer": pr.einsum("oi,pi->op", w, w)[0:L],
        "first": w.axes[0][0:L],
        "gradient": pr.grad(loss, x)[0:T],
    }


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("which", list(programs()))
def test_programs_equal_the_oracle(which: str, backend: str) -> None:
    output = programs()[which]
    rng = np.random.default_rng(1)
    given: dict[str, Any] = {"x": rng.normal(size=(5, 64)).astype("float32")}
    given |= dict(zip(("codes", "scales", "offsets"), matrix(4, 64, 64, 32, True, (3,)), strict=True))
    given["scales"], given["offsets"] = given["scales"] / np.float16(40), given["offsets"] / np.float16(40)
    if which in ("rows", "outer", "first"):
        del given["x"]
    bounds = {"T": 5} if which == "rows" else {}
    program = pr.compile(output, backend=backend)
    wanted = pr.evaluate(output, given, bounds=bounds)
    np.testing.assert_allclose(program(bounds=bounds, **given), wanted, rtol=1e-3, atol=1e-4)


def test_elements_are_not_stored() -> None:
    stack = programs()["stack"]
    program = pr.compile(stack)
    assert "dequantize(codes[l], scales[l], offsets[l])" in str(program.schedule)
    assert program.memory.kept({"L": 3, "T": 5}) < 64 * 64 * 4


@pytest.mark.parametrize(
    ("codes", "scales", "error"),
    [
        (("int8", (4, 10)), ("float16", (4, 3)), "as many scales along the last axis"),
        (("int16", (4, 10)), ("float16", (4, 5)), "give int8 codes"),
        (("uint8", (4, 8)), ("float16", (4, 1)), "in groups of 32"),
        (("int8", (4, 10)), ("int8", (4, 5)), "give floats"),
        (("int8", (4, 10)), ("float16", (3, 5)), "as many scales"),
    ],
)
def test_what_cannot_be_dequantized(codes: Any, scales: Any, error: str) -> None:
    with pytest.raises(pr.errors.PolyrhythmError, match=error):
        pr.dequantize(*(pr.input(name, shape, (), dtype) for name, (dtype, shape) in (("c", codes), ("s", scales))))


def test_a_gradient_by_scales_is_refused() -> None:
    scales = pr.input("s", (4, 1), (), "float16")
    w = pr.dequantize(pr.input("c", (4, 16), (), "int8"), scales)
    with pytest.raises(pr.errors.PolyrhythmError, match="dequantize"):
        pr.evaluate(pr.grad(w.sum(), scales), {"s": np.ones((4, 1), "float16"), "c": np.ones((4, 16), "int8")})
