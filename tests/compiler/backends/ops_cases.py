"""Calls of every operation for the tests of the backends: the samples of the op table, and those a backend may get
wrong: starts, paddings and windows known at run time, axes that correspond in part, mixtures of one and many."""

from collections.abc import Iterator

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.terms import Symbol, Term
from tests.compiler.ir.ops.samples import ANY, FACTORS, SAMPLES, SYMBOLS, Length, Sample, i, j, k, l, tensor

zero, one = Term(0), Term(1)


def _slices() -> list[Sample]:
    found = []
    for starts, lengths, steps in (
        ((i, k), (j, l), (1, 1)),
        ((i, zero), (Term(2), l), (1, 1)),
        ((i + j, k + l), (j, l), (-1, -1)),
        ((i, k + 2 * l), (j, l), (3, -2)),
        ((zero, one), (j, Term(2)), (2, 1)),
    ):
        shape = [
            start + (length * step if step > 0 else zero) + 6
            for start, length, step in zip(starts, lengths, steps, strict=True)
        ]
        found.append(Sample("slice", (tensor("f32", *shape),), {"starts": starts, "lengths": lengths, "steps": steps}))
    found.append(Sample("slice", (tensor("i8", i),), {"starts": (i,), "lengths": (zero,), "steps": (1,)}))
    return found


def _shapes() -> list[Sample]:
    reshapes = [
        ((4 * i,), (i, 4)),
        ((i, 4), (4 * i,)),
        ((2, 3, i, 4), (6, 2 * i, 2)),
        ((i, j), (j, i)),
        ((i, 2, j), (i, 2 * j)),
        ((i * j,), (i, j)),
        ((2, i), (i, 2)),
        ((i, j, 3, k), (i, 3 * j, k)),
        ((i, j, k), (i * j * k,)),
    ]
    found = [
        Sample("reshape", (tensor(d, *old),), {"shape": tuple(map(Term.of, new))})
        for d in ("f32", "u16")
        for old, new in reshapes
    ]
    found.append(Sample("concat", (tensor("u32", 2, i), tensor("u32", 2, 3), tensor("u32", 2, j)), {"axis": 1}))
    found.append(Sample("concat", (tensor("bool", 2, i), tensor("bool", 1, i)), {"axis": 0}))
    padding = {"before": (i, zero, one), "after": (zero, j, k), "value": 7}
    found.append(Sample("pad", (tensor("u64", j, 2, k),), padding))
    found.append(Sample("copy", (tensor("u16", 1, j, 1),), {}))
    found.append(Sample("broadcast", (tensor("u16", 1, j, 1),), {"shape": (k, i, j, l)}))
    found.append(Sample("transpose", (tensor("u32", 2, i, j),), {"axes": (1, 2, 0)}))
    return found


def _windows() -> list[Sample]:
    found = []
    settings = {"stride": (2,), "padding": ((i, j),), "dilation": (2,), "groups": 1}
    found.append(Sample("conv", (tensor("f32", 2, 3, l), tensor("f32", 2, 3, k + 1)), settings))
    found.append(Sample("conv", (tensor("i8", i, j, 6), tensor("i8", 2, j, k + 1)), settings))
    channels = {"stride": (1,), "padding": ((1, 1),), "dilation": (1,), "groups": 3}
    found.append(Sample("conv", (tensor("f32", i, 3 * j, 4), tensor("f32", 3, j, 2)), channels))
    found.append(Sample("conv", (tensor("f16", i, 6, l), tensor("f16", 3 * k, 2, 2)), channels))
    pointwise = {"stride": (), "padding": (), "dilation": (), "groups": 2}
    found.append(Sample("conv", (tensor("f32", i, 2 * j), tensor("f32", 4, j)), pointwise))
    moved = {"stride": (1,), "padding": ((i, zero),), "dilation": (1,), "groups": 1}
    for d in ("f32", "bf16", "u16"):
        found.append(Sample("conv", (tensor(d, 1, 2, j), tensor(d, 2, 2, 2)), moved))
        windows = {"monoid": "sum", "window": (2,), "stride": (1,), "padding": ((i, zero),)}
        found.append(Sample("reduce_window", (tensor(d, 2, j),), windows))
    for d, monoid in (("f32", "sum"), ("i32", "max"), ("bool", "any"), ("u8", "prod"), ("f64", "min")):
        windows = {"monoid": monoid, "window": (i + 1, 2), "stride": (2, 1), "padding": ((j, 1), (0, k))}
        found.append(Sample("reduce_window", (tensor(d, 2, j + 2, l),), windows))
    return found


def _others() -> list[Sample]:
    found = []
    for d in ("u16", "u32"):
        a, b = tensor(d, i, j), tensor(d, j)
        found += [Sample(op, (a, b)) for op in ("add", "sub", "mul", "floordiv", "mod", "pow", "lt", "maximum", "xor")]
        found += [Sample(op, (a,)) for op in ("neg", "not", "sign", "abs", "isfinite")]
        found += [Sample("reduce", (a,), {"monoid": m, "axes": (1,)}) for m in ("sum", "max")]
        found += [Sample("cast", (a,), {"dtype": dtypes.parse(t)}) for t in ("f32", "i8", "u64", "bool", "bf16")]
        found.append(Sample("argsort", (a,), {"axis": 0, "descending": True}))
        found.append(Sample("take", (a, tensor(d, k)), {"axis": 0}))
        found.append(Sample("scatter_add", (a, tensor(d, k), tensor(d, k, j)), {"axis": 0}))
    for d in ("f32", "f64", "u64"):
        found += [Sample("cast", (tensor(d, i, j),), {"dtype": target}) for target in dtypes.DTYPES]
    for monoid in ("any", "all"):
        for reverse in (False, True):
            cumulative = {"monoid": monoid, "axis": 0, "reverse": reverse}
            found.append(Sample("cumulative", (tensor("bool", i, j),), cumulative))
    contractions: dict[str, tuple[tuple[Length, ...], tuple[Length, ...]]] = {
        "bid,bjd->bij": ((i, j, 4), (i, k, 4)),
        "bij,bjd->bid": ((2, j, k), (2, k, 3)),
        "i,j->ij": ((i,), (j,)),
        "ij,j->i": ((3, j), (j,)),
        "ijk,kl->lij": ((i, j, k), (k, l)),
        "iij,jk->k": ((i, i, j), (j, k)),
        "ij,->j": ((i, j), ()),
        "ij,ij->": ((i, j), (i, j)),
    }
    for spec, (a_shape, b_shape) in contractions.items():
        for d in ("f32", "f16", "i8"):
            found.append(Sample("einsum", (tensor(d, *a_shape), tensor(d, *b_shape)), {"spec": spec}))
    for indices in ("i64", "u32"):
        for first, second in (((1, j, k), (i, l, 1)), ((i, j, 1), (1, l, 1)), ((1, j, k), (1, l, k))):
            found.append(Sample("take_along", (tensor("f32", *first), tensor(indices, *second)), {"axis": 1}))
    found.append(Sample("scatter_along", (tensor("f32", j, i), tensor("i64", l, i), tensor("f32", l, i)), {"axis": 0}))
    found.append(Sample("random_bits", (), {"shape": (2, i, j, 3), "site": "x"}, {"seed": 2**40 + 1, "step": (7,)}))
    found.append(Sample("random_bits", (), {"shape": (i, 3), "site": "y"}, {"seed": 5, "step": ()}))
    found.append(Sample("random_bits", (), {"shape": (), "site": "y"}, {"seed": 5, "step": (0, 2**33)}))
    for op in ("detach", "keep"):
        found += [Sample(op, (tensor(d, i, j),)) for d in ("f32", "bf16", "u64", "bool")]
    found += [Sample("select", (tensor("bool", i, j), tensor(d, i, 1), tensor(d, j))) for d in ANY]
    return found


CASES: list[Sample] = [*SAMPLES, *_slices(), *_shapes(), *_windows(), *_others()]


def cases_of(op: str) -> list[Sample]:
    return [case for case in CASES if case.op == op]


def some_lengths(rng: np.random.Generator, largest: int = 4) -> Iterator[dict[Symbol, int]]:
    """Lengths of every kind: all empty, all one, all large, one empty, and others."""
    for length in (0, 1, largest):
        yield dict.fromkeys(SYMBOLS, length)
    for symbol in SYMBOLS:
        yield {other: 0 if other is symbol else int(rng.integers(1, largest + 1)) for other in SYMBOLS}
    for _ in range(3):
        yield {symbol: int(rng.integers(0, largest + 1)) for symbol in SYMBOLS}


EXACT_ORDER = ("einsum", "conv", *FACTORS)
"""Operations whose sums may be grouped, so that infinite terms may cancel or not."""


def with_extremes(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays with some elements replaced by infinity, NaN, and the extremes of integers."""
    changed = []
    for array in arrays:
        if array.dtype == dtypes.BOOL:
            values = np.array([False, True])
        elif dtypes.kind(array.dtype) == "complex":
            values = np.array([1e4, -2.5j, 0]).astype(array.dtype)  # what infinite parts give differs between libraries
        elif dtypes.is_float(array.dtype):
            values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e4, -1e4, 2.5, -2.5]).astype(array.dtype)
        else:
            limits = np.iinfo(array.dtype)
            values = np.array([limits.min, limits.max, limits.max - 1, 0, 1], array.dtype)
        changed.append(np.where(rng.random(array.shape) < 0.4, rng.choice(values, array.shape), array))
    return changed


TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-13}
TOLERANCE |= {"complex64": 4e-6, "complex128": 2e-13}


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits for exact dtypes, a few roundings for floats."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if not dtypes.is_inexact(expected.dtype):
        np.testing.assert_array_equal(actual, expected)
        return
    tolerance = TOLERANCE[expected.dtype.name]
    if dtypes.kind(expected.dtype) == "complex":
        most = np.abs(expected[np.isfinite(expected)]).max(initial=1)
        np.testing.assert_allclose(actual, expected, tolerance, 8 * tolerance * most)
        return
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), tolerance, 4 * tolerance)
