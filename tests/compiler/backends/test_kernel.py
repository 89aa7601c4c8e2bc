"""The kernel for few rows: equal to NumPy in float64 at every size around its vectors, tiles and threads."""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.backends import native
from polyrhythm.compiler.backends.jax.products import build, kernel
from polyrhythm.compiler.backends.jax.products.kernel import MOST_ROWS

BFLOAT16 = ml_dtypes.bfloat16
ROOT = Path(__file__).parents[3]


def normal(*shape: int, dtype: Any = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(dtype)


def expected(rows: np.ndarray, matrix: np.ndarray, lengths: Any, along: bool) -> np.ndarray:
    """The product with everything beyond the lengths taken as zero, or as not there."""
    batch, wide = len(rows), np.broadcast_to(matrix, (len(rows), *matrix.shape[-2:])).astype("float64")
    size = matrix.shape[-2]
    each = np.clip(np.broadcast_to(size if lengths is None else lengths, batch), 0, size)
    used = np.stack([np.where(np.arange(size)[:, None] < n, one, 0) for one, n in zip(wide, each, strict=True)])
    return np.einsum("brk,bkn->brn" if along else "brk,bnk->brn", rows.astype("float64"), used)


def product(rows: Any, matrix: Any, lengths: Any = None, along: bool = False) -> np.ndarray:
    """By the kernel."""
    given = None if lengths is None else jnp.asarray(np.atleast_1d(lengths), jnp.int32)
    return np.asarray(kernel.product(jnp.asarray(rows), jnp.asarray(matrix), given, along=along))


def check(rows: np.ndarray, matrix: np.ndarray, lengths: Any = None, along: bool = False) -> None:
    found = product(rows, matrix, lengths, along)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(rows, matrix, lengths, along), rtol=1e-4, atol=1e-4)


def test_there_is_a_kernel() -> None:
    assert kernel.missing() is None


@pytest.mark.parametrize("along", [False, True], ids=["across", "along"])
@pytest.mark.parametrize("dtype", ["float32", BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, MOST_ROWS])
def test_every_number_of_rows_and_size_of_a_matrix(rows: int, dtype: Any, along: bool) -> None:
    for inner, outer in [(1, 1), (3, 2), (15, 17), (16, 4), (17, 63), (64, 64), (65, 129), (128, 5), (131, 70)]:
        matrix = normal(2, *((inner, outer) if along else (outer, inner)), dtype=dtype)
        check(normal(2, rows, inner), matrix, along=along)
        check(normal(2, rows, inner), matrix[0], along=along)


@pytest.mark.parametrize("along", [False, True], ids=["across", "along"])
@pytest.mark.parametrize("lengths", [0, 1, 5, 64, 200, -3, 1000, (0, 3, 200), (7, -1, 999)])
def test_lengths(lengths: Any, along: bool) -> None:
    """Garbage beyond a length is neither read nor computed with."""
    whole = normal(3, 200, 24)
    for b, n in enumerate(np.broadcast_to(lengths, 3)):
        whole[b, max(0, n) :] = np.nan
    rows = normal(3, 2, 200 if along else 24)
    check(rows, np.where(np.isnan(whole), 0, whole), lengths, along)
    assert np.isfinite(product(rows, whole, lengths, along)).all()


def test_what_has_no_elements() -> None:
    assert product(jnp.zeros((0, 2, 3)), jnp.zeros((0, 5, 3))).shape == (0, 2, 5)
    np.testing.assert_array_equal(product(jnp.ones((2, 2, 0)), jnp.ones((2, 5, 0))), np.zeros((2, 2, 5)))
    np.testing.assert_array_equal(product(jnp.ones((2, 2, 0)), jnp.ones((2, 0, 5)), along=True), np.zeros((2, 2, 5)))


@pytest.mark.parametrize("along", [False, True], ids=["across", "along"])
@pytest.mark.parametrize("shape", [(1, 1500, 770), (9, 300, 64), (40, 130, 65), (2, 4100, 64)])
@pytest.mark.parametrize("rows", [1, 4, 6])
def test_large_products_share_out_their_tiles(shape: tuple[int, ...], rows: int, along: bool) -> None:
    matrix = normal(*shape)
    inner = shape[1] if along else shape[2]
    x = normal(shape[0], rows, inner) / inner**0.5
    check(x, matrix, along=along)
    check(x, matrix.astype(BFLOAT16), along=along)
    check(x, matrix, shape[1] * 2 // 3, along)


@pytest.mark.parametrize("along", [False, True], ids=["across", "along"])
def test_sums_do_not_depend_on_how_the_matrix_is_shared_out(along: bool) -> None:
    matrix = normal(1, *((700, 512) if along else (512, 700)))
    rows = normal(1, 4, 700)
    whole = product(rows, matrix, along=along)
    for first in range(0, 512, 64):  # too small for a second thread
        part = matrix[:, :, first : first + 64] if along else matrix[:, first : first + 64]
        np.testing.assert_array_equal(product(rows, part, along=along), whole[:, :, first : first + 64])


def test_products_side_by_side() -> None:
    """Many at once, from several threads of Python, each with tiles for all of XLA's."""
    matrices = [normal(600, 500, seed=n) for n in range(6)]
    rows = normal(1, 3, 500)

    @jax.jit
    def together(rows: jax.Array, matrices: list[jax.Array]) -> list[jax.Array]:
        def step(_: Any, made: list[jax.Array]) -> list[jax.Array]:
            return [kernel.product(rows + 0 * made[0][0, 0, 0], matrix) for matrix in matrices]

        return jax.lax.fori_loop(0, 50, step, [jnp.zeros((1, 3, 600)) for _ in matrices])

    wanted = [expected(rows, matrix, None, False) for matrix in matrices]
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(together(rows, matrices))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for found in results:
        for one, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "matrix", "lengths"),
    [
        (np.zeros((2, 3, 4), "float32"), np.zeros((3, 5, 4), "float32"), np.zeros(1, "int32")),
        (np.zeros((2, 3, 4), "float32"), np.zeros((2, 5, 4), "float32"), np.zeros(3, "int32")),
        (np.zeros((2, 3, 4), "float32"), np.zeros((2, 5, 4), "int32"), np.zeros(1, "int32")),
    ],
)
def test_operands_that_do_not_belong_together_are_refused(rows: Any, matrix: Any, lengths: Any) -> None:
    with pytest.raises(Exception, match="few rows: "):
        product(rows, matrix, lengths)


def decoder() -> tuple[pr.Tensor, dict[str, Any]]:
    t, T = pr.dim("t")
    x = pr.recurrent((128,), ((t, T + 1),))
    w = pr.input("w", (128, 128))
    x[0] = 1.0
    x[t + 1] = pr.tanh(pr.einsum("i,oi->o", x, w))
    return x[T], {"w": normal(128, 128) / 11, "bounds": {T: 20}}


def compiler(folder: Path, text: str) -> str:
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


SMALL = "rows.c"
"""How a file becomes a library does not depend on its length, but the time does: 0.1 instead of 1.5 s."""


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing was built before."""
    monkeypatch.setenv("POLYRHYTHM_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(build, "built", build.built.__wrapped__)
    monkeypatch.setattr(build, "_begun", {})
    return tmp_path


def built(anew: Path) -> Path:
    """The one library in the cache."""
    assert build.built(SMALL).library is not None
    (kept,) = (anew / "kept").glob("*.so")
    return kept


def test_libraries_are_built_beside_what_else_is_done(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at once, each once, whoever asks when."""
    both, calls = threading.Barrier(2, timeout=30), []

    def making(source: Path, *flags: str, header: bytes = b"") -> native.Built:
        calls.append(source.name)
        both.wait()
        return native.Built(None, source.name)

    monkeypatch.setattr(native, "built", making)
    build.ahead("one.c", "two.c")
    build.ahead("two.c")
    assert [build.built(name).missing for name in ("one.c", "two.c")] == ["one.c", "two.c"]
    assert sorted(calls) == ["one.c", "two.c"]


def test_a_library_is_built_once(anew: Path) -> None:
    before = built(anew).stat().st_mtime_ns
    assert built(anew).stat().st_mtime_ns == before


def test_a_library_without_a_folder_to_keep_it(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_CACHE", "")
    monkeypatch.setattr(tempfile, "tempdir", str(anew))
    assert build.built(SMALL).library is not None
    assert not (anew / "kept").exists()


def test_no_compiler(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(anew / "none"))
    assert build.built(SMALL) == build.Built(None, "there is no C compiler (`cc`, or what $CC names)")


def test_a_compiler_that_fails(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler(anew, 'case "$*" in *rows.c*) echo "no such thing" >&2; exit 1;; esac'))
    made = build.built(SMALL)
    assert made.library is None
    assert made.missing == f"{anew / 'cc'} failed on rows.c: no such thing"
    assert not (anew / "kept").exists()


def test_without_a_kernel_its_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "missing", lambda: "there is none today")
    with pytest.raises(pr.errors.UnsupportedError, match="there is none today"):
        product(normal(1, 2, 3), normal(1, 4, 3))


def test_a_compiler_with_arguments(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -g0")
    assert build.built(SMALL).library is not None


def test_what_a_compiler_makes_that_cannot_be_opened(anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'for last; do :; done; case "$*" in *rows.c*) echo nothing > "$last";; esac'
    monkeypatch.setenv("CC", compiler(anew, text))
    made = build.built(SMALL)
    assert made.library is None
    assert made.missing is not None
    assert made.missing.startswith("rows.c could not be compiled or opened: ")
    assert not (anew / "kept").exists()


@pytest.mark.parametrize("share", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (0.1, 0.9)), 0.5])
def test_a_damaged_library_is_replaced(anew: Path, share: float) -> None:
    """Opening a part of one ends the process, so this runs in another."""
    kept = built(anew)
    whole = kept.read_bytes()
    kept.unlink()  # the one that is open stays as it is
    kept.write_bytes(whole[: int(share * len(whole))])
    code = "from polyrhythm.compiler.backends.jax.products import build; assert build.built('rows.c').library"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("damage", ["missing", "of another file", "not text"])
def test_a_library_without_its_digest_is_replaced(anew: Path, damage: str) -> None:
    kept = built(anew)
    digest = kept.with_suffix(".sha256")
    whole = digest.read_text()
    digest.unlink()
    if damage != "missing":
        digest.write_bytes(b"0" * 64 if damage == "of another file" else b"\xff\xfe")
    before = kept.stat().st_mtime_ns
    assert built(anew).stat().st_mtime_ns > before
    assert digest.read_text() == whole


def test_a_library_that_others_may_write_is_replaced(anew: Path) -> None:
    kept = built(anew)
    kept.chmod(0o666)
    assert not built(anew).stat().st_mode & stat.S_IWOTH


@pytest.mark.parametrize(("command", "why"), [(" ", "there is no C compiler"), ("gcc '", "No closing quotation")])
def test_junk_for_a_compiler(anew: Path, monkeypatch: pytest.MonkeyPatch, command: str, why: str) -> None:
    monkeypatch.setenv("CC", command)
    made = build.built(SMALL)
    assert made.library is None
    assert why in str(made.missing)


def test_a_library_without_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "built", lambda _: build.Built(ctypes.CDLL(None)))
    assert build._missing.__wrapped__("skinny.c", kernel.FORMS) == "the library of skinny.c has no skinny_across"


def test_a_folder_that_cannot_be_written(anew: Path) -> None:
    (anew / "kept").write_text("a file", encoding="utf-8")
    assert build.built(SMALL).library is not None


def test_threads_that_want_the_kernel_first(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[str] = []
    monkeypatch.setattr(build, "_missing", lru_cache(build._missing.__wrapped__))
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, *_, **__: registered.append(name))
    threads = [threading.Thread(target=kernel.missing) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(registered) == [f"polyrhythm_{form}" for form in kernel.FORMS]


OTHERS = {
    "no shuffles": ("-march=native", "-DNO_SHUFFLE"),
    **({"SSE": ("-march=x86-64",), "AVX2": ("-march=x86-64-v3",)} if platform.machine() == "x86_64" else {}),
}


@pytest.mark.parametrize("which", OTHERS)
def test_other_instructions(which: str, anew: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine would have done if it were older, or its compiler."""
    monkeypatch.setattr(native, "FLAGS", ("-O2", "-std=gnu11", "-fPIC", "-shared", *OTHERS[which]))
    library = build.built("skinny.c").library
    assert library is not None
    for along, form in enumerate(kernel.FORMS[:2]):
        name = f"{form} {which}"
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, form)), platform="cpu")
        for dtype in ("float32", BFLOAT16):
            for inner, outer, rows in [(1, 1, 1), (17, 35, 3), (64, 64, 4), (131, 70, 7)]:
                x, matrix = (
                    normal(3, rows, inner),
                    normal(3, *((inner, outer) if along else (outer, inner)), dtype=dtype),
                )
                for lengths in (np.array([5], np.int32), np.array([0, 9, 1000], np.int32)):
                    call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((3, rows, outer), jnp.float32))
                    wanted = expected(x, matrix, lengths, bool(along))
                    np.testing.assert_allclose(call(x, matrix, lengths), wanted, rtol=1e-4, atol=1e-4)
    for along, form in enumerate(kernel.FORMS[2:]):
        jax.ffi.register_ffi_target(f"{form} {which}", jax.ffi.pycapsule(getattr(library, form)), platform="cpu")
        x, matrix, starts = normal(6, 3, 35 if along else 17), normal(2, 50, 17), np.array([0, 4, 15], np.int32)
        call = jax.ffi.ffi_call(f"{form} {which}", jax.ShapeDtypeStruct((6, 3, 17 if along else 35), jnp.float32))
        parts = np.concatenate([matrix[:, start : start + 35] for start in starts])
        wanted = x @ (parts if along else parts.transpose(0, 2, 1))
        np.testing.assert_allclose(call(x, matrix, starts), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("along", [False, True], ids=["across", "along"])
@pytest.mark.parametrize("inner", [64, 67])
def test_sums_do_not_depend_on_lengths(inner: int, along: bool) -> None:
    """The score of a key is the same however many follow it; so is a sum over steps whose last weights are zero."""
    matrix, rows = normal(2, 41, inner), normal(2, 3, 41 if along else inner)
    if along:
        rows[:, :, 33:] = 0
    whole = product(rows, matrix, along=along)
    for length in range(33, 42):
        found = product(rows, matrix, length, along)
        np.testing.assert_array_equal(
            found if along else found[:, :, :length], whole if along else whole[:, :, :length]
        )


def test_without_a_kernel_programs_run_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, given = decoder()
    wanted = pr.evaluate(outputs, {"w": given["w"]}, bounds=given["bounds"])
    program = pr.compile(outputs)
    assert "products of up to 24 rows with large matrices: skinny.c" in program.explain()
    np.testing.assert_allclose(program(**given), wanted, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(kernel, "missing", lambda: "there is none today")
    program = pr.compile(outputs)
    assert "products are left to XLA, those of few rows too: there is none today" in program.explain()
    np.testing.assert_allclose(program(**given), wanted, rtol=1e-4, atol=1e-5)
    assert "kernels:\n" not in pr.compile(outputs, backend="numpy").explain()
    assert "kernels:\n" not in pr.compile(pr.input("x", (3,)).sum(0)).explain()
