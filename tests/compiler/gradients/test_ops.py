"""The derivative of every operation of the table, through the functions that use it, against finite differences."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.language.tensor import apply
from tests.compiler.gradients.differences import Function, check_function

# Operations on truth values and integers, and those without operands: no gradient ever reaches them. That of codes by
# their scales is refused.
WITHOUT_DERIVATIVE = {"not", "and", "or", "xor", "constant", "iota", "index", "random_bits", "dequantize"}
WITHOUT_DERIVATIVE |= {"choose"}  # made by a pass, once gradients are worked out
WITHOUT_DERIVATIVE |= {"grouped"}  # made by a pass where there are none

# Their derivative is zero wherever it exists.
RULES = {name for name, op in TABLE.items() if op.vjp is not None}
FLAT = {"sign", "floor", "ceil", "round", "isfinite", "floordiv", "eq", "ne", "lt", "le", "detach"}
FLAT |= {"argreduce", "argsort"}


def normal(*shape: int) -> np.ndarray:
    """Distinct numbers around zero, none of them close to it or to another."""
    count = int(np.prod(shape))
    places = np.random.default_rng(count).permutation(count) - count // 2 + 0.3
    return (places * 2.0 / max(count, 4)).reshape(shape)


def positive(*shape: int) -> np.ndarray:
    return np.abs(normal(*shape)) + 0.2


def matrix(n: int) -> np.ndarray:
    """A matrix whose eigenvalues, and those of its symmetric part, are apart from each other."""
    return normal(n, n) * 0.3 + np.diag(np.arange(1.0, n + 1))


def pick(*places: int) -> pr.Tensor:
    return pr.constant(np.array(places, np.int32))


CASES: dict[str, list[tuple[Function, list[np.ndarray]]]] = {
    "neg": [(lambda x: -x, [normal(3)])],
    "exp": [(pr.exp, [normal(3)]), (pr.sigmoid, [normal(4)]), (pr.softplus, [normal(4)])],
    "log": [(pr.log, [positive(3)])],
    "log1p": [(pr.log1p, [positive(3)])],
    "expm1": [(pr.expm1, [normal(3)])],
    "tanh": [(pr.tanh, [normal(4)])],
    "sqrt": [(pr.sqrt, [positive(3)]), (pr.rsqrt, [positive(3)])],
    "sin": [(pr.sin, [normal(3)])],
    "cos": [(pr.cos, [normal(3)])],
    "sinh": [(pr.sinh, [normal(4)])],
    "cosh": [(pr.cosh, [normal(4)])],
    "lgamma": [(pr.lgamma, [positive(4)]), (pr.lgamma, [np.array([-0.4, -1.6, 3.5])])],
    "digamma": [(pr.digamma, [positive(4)]), (pr.digamma, [np.array([-0.4, -1.6, 3.5, 20.0])])],
    "atan2": [
        (pr.atan2, [normal(2, 3), normal(3) + 0.1]),
        (pr.atan, [normal(4)]),
        (pr.asin, [normal(4) * 0.5]),
        (pr.acos, [normal(4) * 0.5]),
    ],
    "cholesky": [(lambda x: pr.linalg.cholesky(x @ x.mT + pr.eye(3, dtype="float64")), [normal(3, 3)])],
    "triangular_solve": [
        (lambda a, b, low=low, turn=turn: pr.linalg.triangular_solve(a, b, low, turn), [matrix(3), normal(3, 2)])
        for low in (False, True)
        for turn in (False, True)
    ],
    "solve": [
        (pr.linalg.solve, [matrix(3), normal(3)]),
        (pr.linalg.solve, [matrix(3), normal(2, 3, 2)]),
        (pr.linalg.inv, [matrix(3)]),
    ],
    "slogdet": [
        (lambda x: pr.linalg.slogdet(x)[1], [matrix(4)]),
        (pr.linalg.det, [matrix(4)]),
        (pr.linalg.det, [normal(2, 3, 3)]),
        (pr.linalg.det, [np.ones((2, 2))]),
    ],
    "qr": [
        (lambda x: pr.linalg.qr(x)[0], [matrix(3)]),
        (lambda x: pr.linalg.qr(x)[1], [matrix(3)]),
        (lambda x: pr.concat(pr.linalg.qr(x), 0), [normal(4, 2)]),
        (lambda x: pr.concat(pr.linalg.qr(x), 1), [normal(2, 4)]),
    ],
    "eigh": [
        (pr.linalg.eigvalsh, [matrix(3)]),
        (lambda x: pr.linalg.eigh(x)[1], [matrix(3)]),
        (lambda x: pr.linalg.eigvalsh(x).sum() + 0 * x, [np.eye(2)]),
    ],
    "svd": [
        (pr.linalg.svdvals, [matrix(3)]),
        (lambda x: pr.linalg.svd(x)[0], [normal(4, 2)]),
        (lambda x: pr.linalg.svd(x)[2], [normal(4, 2)]),
        (lambda x: pr.linalg.svd(x)[2], [normal(2, 3)]),
        (lambda x: pr.linalg.matrix_norm(x, "nuc"), [normal(2, 3)]),
    ],
    "scatter": [
        (lambda x, u: x.at[pick(0, 2, 2, 9)].set(u), [normal(3, 2), normal(4, 2) + 0.1]),
        (lambda x, u: x.at[pick(0, 2, 2, 9)].max(u), [normal(3, 2), normal(4, 2) + 0.1]),
        (lambda x, u: x.at[:, pick(1, 1)].min(u), [normal(3, 2), normal(3, 2) + 0.1]),
        (lambda x, u: x.at[1:, 0].set(u) * x, [normal(3, 2), normal(2)]),
        (lambda x, u: x.at[::-2, 1].max(u) * x, [normal(3, 2), normal(2)]),
        (lambda x, u: x.at[pick(0, 1, 0), pick(1, 1, 1)].set(u), [normal(3, 2), normal(3) + 0.1]),
    ],
    "real": [(lambda x, y: (pr.complex(x, y) ** 2).real, [normal(3), normal(3)])],
    "imag": [(lambda x, y: pr.exp(pr.complex(x, y)).imag, [normal(3), normal(3)])],
    "complex": [
        (lambda x, y: pr.abs(pr.complex(x, y)), [normal(2, 3), normal(3) + 0.1]),
        (lambda x, y: pr.angle(pr.sqrt(pr.complex(x, y))), [normal(3), positive(3)]),
        (lambda x, y: (pr.conj(pr.complex(x, y)) / pr.complex(y, x)).imag, [normal(3), positive(3)]),
        (lambda x: (x.cast("complex128") * (1 + 2j)).imag, [normal(3)]),
        (lambda x, y: (pr.complex(x, y) @ pr.complex(y, x)).real, [normal(2, 2), normal(2, 2)]),
        (lambda x, y: pr.log(pr.complex(x, y)).imag + pr.tanh(pr.complex(x, y)).real, [normal(3), positive(3)]),
        (lambda x, y: (pr.complex(x, y) ** 3).cumsum(0).real.sum(), [normal(3), positive(3)]),
        (lambda x, y: pr.norm(pr.complex(x, y), axis=0) + pr.var(pr.complex(x, y), 0), [normal(3, 2), normal(3, 2)]),
    ],
    "fft": [
        (lambda x, y: pr.fft.fft(pr.complex(x, y)).real, [normal(4), normal(4)]),
        (lambda x, y: pr.fft.ifft(pr.complex(x, y), 0, "ortho").imag, [normal(3, 2), normal(3, 2)]),
        (lambda x: pr.abs(pr.fft.rfft(x)) ** 2, [normal(5)]),
        (lambda x: pr.fft.irfft(pr.fft.rfft(x) * (1 + 2j), 5), [normal(5)]),
        (lambda x: pr.fft.fft2(x).imag, [normal(3, 3)]),
    ],
    "abs": [(pr.abs, [normal(4)])],
    "erf": [(pr.erf, [normal(3)]), (pr.gelu, [normal(4)]), (pr.silu, [normal(4)])],
    "cast": [(lambda x: (x.cast("float64") ** 2).cast("float64"), [normal(3)])],
    "add": [(lambda x, y: x + y, [normal(2, 3), normal(3)]), (lambda x, y: x + y, [normal(2, 1), normal(1, 3)])],
    "sub": [(lambda x, y: x - y, [normal(2, 3), normal(2, 1)]), (lambda x, y: x - y, [normal(), normal(2)])],
    "mul": [(lambda x, y: x * y, [normal(2, 3), normal(1, 3)]), (lambda x: x * x, [normal(3)])],
    "div": [(lambda x, y: x / y, [normal(2, 3), positive(3)]), (pr.reciprocal, [positive(3)])],
    "mod": [(lambda x, y: x % y, [normal(4) * 3, positive(4)]), (lambda x, y: x % -y, [normal(4) * 3, positive(4)])],
    "pow": [
        (lambda x, y: x**y, [positive(2, 3), normal(3)]),
        (lambda x: x**3, [normal(4)]),
        (lambda x: x**-2, [positive(4)]),
        (lambda x: x**0.5, [positive(4)]),
        (lambda x: 2.0**x, [normal(4)]),
        (lambda x: x**2, [np.array([0.0, 1.0])]),
    ],
    "maximum": [
        (pr.maximum, [normal(2, 3), normal(3) + 0.1]),
        (pr.relu, [normal(4)]),
        (lambda x: pr.clip(x, low=0.1), [normal(5)]),
    ],
    "minimum": [(pr.minimum, [normal(2, 3), normal(3) + 0.1]), (lambda x: pr.clip(x, -0.4, 0.5), [normal(6)])],
    "select": [
        (lambda x, y: pr.where(x > y, x * 2.0, y * y), [normal(2, 3), normal(3) + 0.1]),
        (lambda x, y: pr.where(pr.constant([True, False, True]), x, y), [normal(2, 1), normal(3)]),
    ],
    "reduce": [
        (lambda x: x.sum(), [normal(2, 3)]),
        (lambda x: x.sum((0, 2), keepdims=True), [normal(2, 3, 2)]),
        (lambda x: x.max(1), [normal(3, 4)]),
        (lambda x: x.min((0, 1)), [normal(3, 4)]),
        (lambda x: x.prod(1), [normal(3, 4)]),
        (lambda x: x.prod((0, 2)), [normal(2, 2, 3)]),
        (lambda x: x.prod(), [normal(4)]),
        (lambda x: x.prod(1), [np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 1.0], [2.0, 3.0, 0.0]])]),
        (lambda x: x.prod(), [np.array([[0.0, 2.0], [3.0, 4.0]])]),
        (lambda x: x.prod(), [np.array([[0.0, 2.0], [0.0, 4.0]])]),
        (lambda x: x.mean(1), [normal(2, 3)]),
        (lambda x: x.var(0), [normal(3, 2)]),
        (lambda x: x.std(1, correction=1), [normal(2, 3)]),
        (lambda x: pr.norm(x, axis=1), [normal(2, 3)]),
        (lambda x: pr.norm(x, order=1), [normal(2, 3)]),
        (lambda x: pr.norm(x, order=float("inf")), [normal(2, 3)]),
        (lambda x: pr.logsumexp(x, 1), [normal(2, 3) * 5]),
        (lambda x: pr.softmax(x), [normal(2, 3) * 5]),
        (lambda x: pr.log_softmax(x, 0), [normal(2, 3) * 5]),
    ],
    "cumulative": [
        (lambda x: x.cumsum(0), [normal(4, 2)]),
        (lambda x: x.cumsum(1, reverse=True), [normal(2, 4)]),
        (lambda x: x.cumprod(0), [normal(4, 2)]),
        (lambda x: x.cumprod(1, reverse=True), [normal(2, 4)]),
        (lambda x: x.cumprod(0), [np.array([2.0, 0.0, 3.0, 4.0])]),
        (lambda x: x.cumprod(0), [np.array([2.0, 0.0, 3.0, 0.0, 5.0])]),
        (lambda x: x.cumprod(0, reverse=True), [np.array([2.0, 0.0, 0.0, 3.0, 5.0])]),
        (lambda x: x.cumprod(0), [np.array([0.0, 0.0, 3.0])]),
        (lambda x: x.cummax(0), [normal(5)]),
        (lambda x: x.cummax(1), [normal(2, 5)]),
        (lambda x: x.cummax(0, reverse=True), [normal(6, 2)]),
        (lambda x: -((-x).cummax(0)), [normal(5)]),
    ],
    "linear_scan": [
        (lambda a, b: apply("linear_scan", a, b, axis=0, reverse=False), [normal(5), normal(5)]),
        (lambda a, b: apply("linear_scan", a, b, axis=1, reverse=True), [normal(2, 4), normal(2, 4)]),
        (lambda a, b: apply("linear_scan", a, b, axis=0, reverse=True), [normal(1, 2), normal(1, 2)]),
    ],
    "einsum": [
        (lambda x, y: x @ y, [normal(2, 3), normal(3, 4)]),
        (lambda x, y: x @ y, [normal(3), normal(2, 3, 4)]),
        (lambda x, y: x @ y, [normal(2, 1, 2, 3), normal(2, 3, 2)]),
        (lambda x, y: pr.dot(x, y), [normal(3), normal(3)]),
        (lambda x, y: pr.outer(x, y), [normal(3), normal(2)]),
        (lambda x, y: pr.einsum("ij,kj->ki", x, y), [normal(2, 3), normal(4, 3)]),
        (lambda x, y: pr.einsum("ij,jk->i", x, y), [normal(2, 3), normal(3, 2)]),
        (lambda x, y: pr.einsum("ij,k->", x, y), [normal(2, 3), normal(2)]),
        (lambda x: pr.einsum("ii->i", x), [normal(3, 3)]),
        (lambda x: pr.einsum("ii->", x), [normal(3, 3)]),
        (lambda x: pr.einsum("iji->j", x), [normal(2, 3, 2)]),
        (lambda x, y: pr.einsum("iji,jk->ki", x, y), [normal(2, 3, 2), normal(3, 2)]),
        (lambda x, y: pr.einsum("jii,ik->kj", x, y), [normal(3, 2, 2), normal(2, 2)]),
        (lambda x: pr.einsum("iii->i", x), [normal(2, 2, 2)]),
        (lambda x: pr.einsum("ijk->k", x), [normal(2, 2, 3)]),
        (lambda x, y, z: pr.einsum("ij,jk,kl->il", x, y, z), [normal(2, 2), normal(2, 3), normal(3, 2)]),
        (lambda x, y: pr.einsum("...i,i->...", x, y), [normal(2, 2, 3), normal(3)]),
        (lambda x: pr.einsum("ij,ij->i", x, x), [normal(2, 3)]),
    ],
    "reshape": [(lambda x: x.reshape(3, 2) ** 2, [normal(2, 3)]), (lambda x: x.flatten() ** 2, [normal(2, 3)])],
    "transpose": [(lambda x: pr.transpose(x, 2, 0, 1) ** 2, [normal(2, 3, 2)])],
    "copy": [(lambda x: apply("copy", x * x) * x, [normal(4)])],
    "broadcast": [
        (lambda x: pr.broadcast_to(x, (2, 3, 2)) ** 2, [normal(3, 1)]),
        (lambda x: pr.repeat(x, 3, 1) ** 2, [normal(2, 2)]),
        (lambda x: pr.tile(x, (2, 3)), [normal(2)]),
    ],
    "concat": [
        (lambda x, y: pr.concat([x, y, x * x], 1), [normal(2, 1), normal(2, 3)]),
        (lambda x, y: pr.stack([x, y], 1), [normal(2), normal(2)]),
    ],
    "pad": [
        (lambda x: pr.pad(x, ((1, 0), (2, 1)), 5.0), [normal(2, 3)]),
        (lambda x: pr.pad(x, ((0, 0), (0, 2))) ** 2, [normal(2, 3)]),
    ],
    "slice": [
        (lambda x: x.axes[1:], [normal(4)]),
        (lambda x: x.axes[::2, 1:3], [normal(4, 4)]),
        (lambda x: x.axes[::-1], [normal(4)]),
        (lambda x: x.axes[3:0:-2], [normal(5)]),
        (lambda x: x.axes[..., -1], [normal(2, 3)]),
        (lambda x: pr.flip(x, 1), [normal(2, 3)]),
        (lambda x: pr.roll(x, 1, 0), [normal(4)]),
        (lambda x: pr.split(x, 2)[1], [normal(4)]),
    ],
    "take": [
        (lambda x: pr.take(x, pick(0, 2, 2), 0), [normal(3, 2)]),
        (lambda x: pr.take(x, pick(-4, 1, 9), 1), [normal(2, 3)]),
        (lambda x: pr.take(x, pick(1, 0, 1, 1).reshape(2, 2), 1), [normal(2, 3, 2)]),
        (lambda x: pr.take(x, pr.constant(np.int32(1)), 0), [normal(3)]),
    ],
    "take_along": [
        (lambda x: pr.gather(x, pick(0, 2, 2, 1).reshape(2, 2), 1), [normal(2, 3)]),
        (lambda x: pr.gather(x, pick(-1, 7, 0).reshape(1, 3), 1), [normal(2, 3)]),
        (lambda x: pr.gather(x, pick(0, 1, 2, 2).reshape(2, 2), 1), [normal(1, 3)]),
        (lambda x: pr.sort(x, 1), [normal(2, 4)]),
        (lambda x: pr.sort(x, 0, descending=True), [normal(4, 2)]),
        (lambda x: pr.topk(x, 2)[0], [normal(2, 4)]),
    ],
    "scatter_add": [
        (lambda x, u: pr.scatter_add(x, pick(0, 2, 2), u), [normal(3), normal(3)]),
        (lambda x, u: pr.scatter_add(x, pick(-1, 1, 3), u, 1) ** 2, [normal(2, 3), normal(2, 3)]),
        (lambda x, u: pr.scatter_add(x, pick(1, 0, 5, 1).reshape(2, 2), u, 1), [normal(2, 3, 2), normal(2, 2, 2, 2)]),
    ],
    "scatter_along": [
        (lambda x, u: pr.scatter_add_along(x, pick(0, 1, 1, 2).reshape(2, 2), u, 1), [normal(2, 3), normal(2, 2)]),
        (lambda x, u: pr.scatter_add_along(x, pick(-1, 3, 2).reshape(1, 3), u, 1) ** 2, [normal(2, 3), normal(2, 3)]),
    ],
    "conv": [
        (lambda x, w: pr.conv1d(x, w), [normal(2, 2, 4), normal(3, 2, 2)]),
        (lambda x, w, b: pr.conv1d(x, w, b, stride=2, padding=1), [normal(1, 2, 5), normal(2, 2, 3), normal(2)]),
        (lambda x, w: pr.conv1d(x, w, stride=3, dilation=2, padding=2), [normal(1, 1, 6), normal(1, 1, 3)]),
        (lambda x, w: pr.conv1d(x, w, groups=2, padding="same"), [normal(1, 4, 4), normal(4, 2, 2)]),
        (lambda x, w: pr.conv2d(x, w), [normal(1, 2, 3, 3), normal(2, 2, 2, 2)]),
        (
            lambda x, w: pr.conv2d(x, w, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
            [normal(2, 2, 4, 4), normal(2, 1, 3, 2)],
        ),
        (lambda x, w: pr.conv1d(x, w), [normal(1, 1, 2), normal(1, 1, 3)]),
    ],
    "reduce_window": [
        (lambda x: pr.max_pool(x, 2), [normal(1, 2, 4)]),
        (lambda x: pr.max_pool(x, (3, 2), stride=(1, 2), padding=(1, 0)), [normal(1, 2, 3, 4)]),
        (lambda x: pr.avg_pool(x, 2, stride=1), [normal(1, 1, 5)]),
        (lambda x: pr.avg_pool(x, (2, 2), stride=2, padding=1), [normal(1, 1, 3, 4)]),
        (lambda x: pr.avg_pool(x, 3, stride=2, padding=1, count_padding=False), [normal(2, 1, 5)]),
    ],
    "sign": [(lambda x: pr.sign(x) * x, [normal(4)])],
    "floor": [(lambda x: pr.floor(x * 3) * x, [normal(4)])],
    "ceil": [(lambda x: pr.ceil(x * 3) * x, [normal(4)])],
    "round": [(lambda x: pr.round(x * 3) * x, [normal(4)])],
    "isfinite": [(lambda x: pr.where(pr.isfinite(x), x * x, 0.0), [normal(4)])],
    "floordiv": [(lambda x, y: x // y + x * y, [normal(4) * 3, positive(4)])],
    "eq": [(lambda x: pr.where(x == 0.0, 0.0, x * x), [normal(4)])],
    "ne": [(lambda x: pr.where(x != 0.0, x * x, 0.0), [normal(4)])],
    "lt": [(lambda x: (x < 0.1).cast("float64") * x, [normal(4)])],
    "le": [(lambda x: (x <= 0.1).cast("float64") * x, [normal(4)])],
    "argreduce": [(lambda x: pr.take(x, x.argmax(), 0) * x, [normal(4)])],
    "shard": [(lambda x: pr.shard(x * x, 0, "data") * x, [normal(4)])],
    "keep": [(lambda x: apply("keep", x * x) * x, [normal(4)])],
    "opaque": [(lambda x, y: pr.jax_function(lambda a, b: jnp.sin(a) * b, [x, y]), [normal(3), normal(3)])],
    "argsort": [(lambda x: pr.argsort(x).cast("float64") * x, [normal(4)])],
}


def test_every_operation_has_a_rule_or_no_derivative() -> None:
    assert set(TABLE) == RULES | WITHOUT_DERIVATIVE
    assert not RULES & WITHOUT_DERIVATIVE


def test_every_rule_is_tested() -> None:
    assert set(CASES) == RULES - {"detach"}  # which differences cannot see
    assert RULES >= FLAT


@pytest.mark.parametrize(("op", "number"), [(op, k) for op, cases in CASES.items() for k in range(len(cases))])
def test_derivatives(op: str, number: int) -> None:
    function, arrays = CASES[op][number]
    check_function(function, *arrays)
