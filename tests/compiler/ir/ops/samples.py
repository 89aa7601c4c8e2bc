"""Sample calls of every operation, for the tests that hold for all of them.

Every axis that a test may resize has a length of its own symbol, so that giving the symbol another value resizes
all axes of one label and the attributes that speak of it, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import ge, lt
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import concrete
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Array, TensorType

I, J, K, L = (Symbol(name, "size") for name in "IJKL")
i, j, k, l = (Term.of(symbol) for symbol in (I, J, K, L))
SYMBOLS = (I, J, K, L)

Lengths = Mapping[Symbol, int]
Length = int | Term


@dataclass(frozen=True)
class Sample:
    """A call of an operation; `extra` are keyword arguments of the NumPy function beside the attributes."""

    op: str
    operands: tuple[TensorType, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"{self.op}({', '.join(map(str, self.operands))}; {shown})"

    def arrays(self, lengths: Lengths, rng: np.random.Generator) -> list[np.ndarray]:
        """Operands of the sampled types: small numbers, some of them equal, indices some of which are out of range."""
        drawn = [elements(rng, operand.dtype, shape_of(operand, lengths)) for operand in self.operands]
        return [conditioned(drawn[0]), *drawn[1:]] if self.op in FACTORS else drawn

    def call(self, arrays: list[np.ndarray], lengths: Lengths) -> np.ndarray:
        """What the NumPy function computes."""
        return TABLE[self.op].numpy(*arrays, **concrete(self.attributes, lengths.__getitem__), **self.extra)


def shape_of(operand: TensorType, lengths: Lengths) -> tuple[int, ...]:
    """The shape of a type at some lengths."""
    return tuple(length.evaluate(lengths.__getitem__) for length in operand.shape)


def elements(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Small random elements of a dtype, with repetitions."""
    if dtype == dtypes.BOOL:
        return rng.random(shape) < 0.5
    low = 0 if dtype.kind == "u" else -3
    whole = rng.integers(low, 6, shape)
    if dtypes.kind(dtype) == "complex":
        return ((whole + 1j * rng.integers(-3, 4, shape)) / 2).astype(dtype)
    return (whole / 2 if dtypes.is_float(dtype) else whole).astype(dtype)


def conditioned(matrices: np.ndarray) -> np.ndarray:
    """Matrices near a diagonal of distinct numbers, symmetric if they are square."""
    small = matrices.astype("float64") / 32
    small = small + np.swapaxes(small, -2, -1) if small.shape[-2] == small.shape[-1] else small
    rows, columns = small.shape[-2:]
    return (small + np.eye(rows, columns) * np.arange(1.0, columns + 1)).astype(matrices.dtype)


def tensor(dtype: str, *shape: Length) -> TensorType:
    """A type from a dtype's name and lengths."""
    return TensorType(tuple(map(Term.of, shape)), dtypes.parse(dtype))


FACTORS = ("cholesky", "triangular_solve", "solve", "slogdet", "qr", "eigh", "svd")
"""Operations on matrices, compared where they are well conditioned."""

FLOATS = ("f16", "bf16", "f32", "f64")
COMPLEX = ("c64", "c128")
INTS = ("i8", "i32", "i64", "u8", "u64")
NUMBERS = FLOATS + INTS
BITS = ("bool", *INTS)
ANY = (*NUMBERS, "bool")

UNARY = {
    **dict.fromkeys(
        ("exp", "log", "log1p", "expm1", "tanh", "sqrt", "sin", "cos", "floor", "ceil", "round", "erf"), FLOATS
    ),
    **dict.fromkeys(("sinh", "cosh", "lgamma", "digamma"), FLOATS),
    **dict.fromkeys(("neg", "abs", "sign"), NUMBERS),
    "not": BITS,
    "isfinite": ANY,
    "detach": ANY,
    "keep": ANY,
}
BINARY = {
    **dict.fromkeys(("add", "sub", "mul", "floordiv", "mod", "pow"), NUMBERS),
    **dict.fromkeys(("div", "atan2"), FLOATS),
    **dict.fromkeys(("maximum", "minimum", "eq", "ne", "lt", "le"), ANY),
    **dict.fromkeys(("and", "or", "xor"), BITS),
}
MONOIDS = {
    **dict.fromkeys(("sum", "prod"), NUMBERS),
    **dict.fromkeys(("max", "min"), ANY),
    "any": ("bool",),
    "all": ("bool",),
}


def _elementwise() -> list[Sample]:
    found = [Sample(op, (tensor(d, i, j),)) for op, allowed in UNARY.items() for d in allowed]
    for op, allowed in BINARY.items():
        for d in allowed:
            found.append(Sample(op, (tensor(d, i, j), tensor(d, j))))
        found.append(Sample(op, (tensor(allowed[0], i, 1), tensor(allowed[0], k, 1, j))))
    for d in ANY:
        found.append(Sample("select", (tensor("bool", i, 1), tensor(d, j), tensor(d))))
    for target in (d for d in dtypes.DTYPES if dtypes.kind(d) != "complex"):
        found += [Sample("cast", (tensor(d, i, j),), {"dtype": target}) for d in ("bf16", "f64", "i32", "bool")]
    return found


def _reductions() -> list[Sample]:
    found = []
    for monoid, allowed in MONOIDS.items():
        for d in allowed:
            for axes in ((), (0,), (2, 0)):
                found.append(Sample("reduce", (tensor(d, i, j, k),), {"monoid": monoid, "axes": axes}))
            if monoid not in ("any", "all"):
                for reverse in (False, True):
                    attributes = {"monoid": monoid, "axis": 1, "reverse": reverse}
                    found.append(Sample("cumulative", (tensor(d, i, j),), attributes))
    for d in ANY:
        for word in ("max", "min"):
            found.append(Sample("argreduce", (tensor(d, i, j + 1, k),), {"which": word, "axis": 1}))
        for reverse in (False, True):
            if d != "bool":
                steps = {"axis": 1, "reverse": reverse}
                found.append(Sample("linear_scan", (tensor(d, i, j, k), tensor(d, i, j, k)), steps))
        for descending in (False, True):
            found.append(Sample("argsort", (tensor(d, i, j),), {"axis": 1, "descending": descending}))
    return found


def _contractions() -> list[Sample]:
    found = []
    for d in NUMBERS:
        a, b = tensor(d, i, j), tensor(d, j, k)
        found.append(Sample("einsum", (a, b), {"spec": "ij,jk->ik"}))
    two = {"ij,jk->": (i, j, j, k), "ij,kl->ki": (i, j, k, l), "ij,ij->ij": (i, j, i, j), "ii,ij->ji": (i, i, i, j)}
    for spec, (a0, a1, b0, b1) in two.items():
        found.append(Sample("einsum", (tensor("f32", a0, a1), tensor("f32", b0, b1)), {"spec": spec}))
    for spec in ("iij->j", "iij->ij", "iij->", "iij->ji"):
        found.append(Sample("einsum", (tensor("i32", i, i, j),), {"spec": spec}))
    return found


def _complex() -> list[Sample]:
    found = []
    for d in COMPLEX:
        part = "f32" if d == "c64" else "f64"
        found += [Sample(op, (tensor(d, i, j),)) for op in ("real", "imag", "neg", "exp", "sin", "cos", "isfinite")]
        found += [Sample(op, (tensor(d, i, j), tensor(d, j))) for op in ("add", "sub", "mul", "eq", "ne")]
        found.append(Sample("complex", (tensor(part, i, 1), tensor(part, j))))
        found += [Sample("cast", (tensor(have, i, j),), {"dtype": dtypes.parse(d)}) for have in ("i8", "f32", "bool")]
        found += [Sample("fft", (tensor(d, j, i),), {"inverse": inverse}) for inverse in (False, True)]
        found.append(Sample("fft", (tensor(d, j, 6),), {"inverse": False}))
        for monoid in ("sum", "prod"):
            found.append(Sample("reduce", (tensor(d, i, j),), {"monoid": monoid, "axes": (0,)}))
            found.append(Sample("cumulative", (tensor(d, i, j),), {"monoid": monoid, "axis": 1, "reverse": True}))
        found.append(Sample("linear_scan", (tensor(d, i, j), tensor(d, i, j)), {"axis": 0, "reverse": False}))
        found.append(Sample("einsum", (tensor(d, i, j), tensor(d, j, k)), {"spec": "ij,jk->ik"}))
        found.append(Sample("select", (tensor("bool", i, 1), tensor(d, j), tensor(d))))
        found.append(Sample("take", (tensor(d, i, j), tensor("i32", k)), {"axis": 1}))
        found.append(Sample("scatter_add", (tensor(d, j), tensor("i32", k), tensor(d, k)), {"axis": 0}))
        set_mode = {"axis": 0, "mode": "set", "unique": False}
        found.append(Sample("scatter", (tensor(d, j), tensor("i32", k), tensor(d, k)), set_mode))
        found.append(Sample("concat", (tensor(d, i), tensor(d, j)), {"axis": 0}))
    return found


def _factors() -> list[Sample]:
    found = []
    for d in FLOATS:
        found += [Sample(op, (tensor(d, i, i),)) for op in ("cholesky", "slogdet", "eigh")]
        found += [Sample(op, (tensor(d, j, i + k, i),)) for op in ("qr", "svd")]
        found.append(Sample("solve", (tensor(d, j, i, i), tensor(d, j, i, k))))
    for op in ("cholesky", "slogdet", "eigh", "qr", "svd"):
        found += [Sample(op, (tensor("f64", *shape),)) for shape in ((j, i, i), (3, 3), (2, j, i, i))]
    found += [Sample(op, (tensor("f64", i + 2, 2),)) for op in ("qr", "svd")]
    for lower in (False, True):
        for transposed in (False, True):
            attributes = {"lower": lower, "transposed": transposed}
            for shape in ((i,), (j, i)):
                operands = (tensor("f32", *shape, i), tensor("f32", *shape, k))
                found.append(Sample("triangular_solve", operands, attributes))
    return found


def _shapes() -> list[Sample]:
    x = tensor("f32", i, j, k)
    reshapes = [
        (tensor("f32", i, 2, 3, j), (i, 6, j)),
        (tensor("f32", i, j), (i, 1, j, 1)),
        (tensor("f32", 1, i, 1, j), (i, j)),
        (tensor("f32", i, 4, j, 2, 3), (i, 2, 2, j, 6)),
        (tensor("f32", i, j, k), (i * j, k)),
        (tensor("f32", i, 0, 3), (i, 0, 5)),
        (tensor("f32"), (1, 1)),
    ]
    found = [Sample("reshape", (operand,), {"shape": tuple(map(Term.of, shape))}) for operand, shape in reshapes]
    found += [Sample("transpose", (x,), {"axes": axes}) for axes in ((0, 1, 2), (2, 0, 1))]
    found.append(Sample("copy", (tensor("f32", i, 3),), {}))
    found.append(Sample("copy", (tensor("bool"),), {}))
    found.append(Sample("broadcast", (tensor("f32", i, 1),), {"shape": (k, i, j)}))
    found.append(Sample("broadcast", (tensor("bf16"),), {"shape": ()}))
    for condition in (ge(l, 2), lt(l, 2)):
        found.append(Sample("choose", (tensor("f32", i, 1), tensor("f32")), {"condition": condition, "shape": (i, j)}))
    found.append(Sample("concat", (x, tensor("f32", i, l, k), tensor("f32", i, 2, k)), {"axis": 1}))
    found.append(Sample("concat", (x,), {"axis": 0}))
    zero = Term(0)
    for d, value in (("f32", -np.inf), ("i8", 3), ("bool", True), ("bf16", 1.5)):
        attributes = {"before": (zero, l, zero), "after": (zero, Term(1), zero), "value": value}
        found.append(Sample("pad", (tensor(d, i, j, k),), attributes))
    found.append(
        Sample(
            "slice",
            (tensor("f32", i, j + 2, k, 2 * l),),
            {"starts": (zero, Term(1), k - 1, Term(1)), "lengths": (i, j, k, l), "steps": (1, 1, -1, 2)},
        )
    )
    return found


def _indexing() -> list[Sample]:
    found = []
    for d in ("f32", "bf16", "i8"):
        for indices in ("i32", "u64", "i8"):
            found.append(Sample("take", (tensor(d, i, j), tensor(indices, k, l)), {"axis": 1}))
            found.append(Sample("take", (tensor(d, j), tensor(indices)), {"axis": 0}))
            updates = tensor(d, i, k, l)
            found.append(Sample("scatter_add", (tensor(d, i, j), tensor(indices, k, l), updates), {"axis": 1}))
            for mode in ("set", "max", "min"):
                modes = {"axis": 1, "mode": mode, "unique": False}
                found.append(Sample("scatter", (tensor(d, i, j), tensor(indices, k, l), updates), modes))
                single = {"axis": 1, "mode": mode, "unique": True}
                found.append(Sample("scatter", (tensor(d, i, j, l), tensor(indices), tensor(d, i, l)), single))
            table, which = tensor(d, l, j, 3), tensor(indices, i, k)
            found.append(Sample("grouped", (tensor(d, j), table, which), {"spec": "j,ejd,ik->ikd"}))
            found.append(Sample("grouped", (tensor(d, k, j), table, which), {"spec": "kj,ejd,ik->di"}))
            along = (tensor(d, i, j, l), tensor(indices, i, k, 1))
            found.append(Sample("take_along", along, {"axis": 1}))
            found.append(Sample("take_along", (tensor(d, 1, j), tensor(indices, i, k)), {"axis": 1}))
            found.append(Sample("scatter_along", (*along, tensor(d, i, k, l)), {"axis": 1}))
    return found


def _windows() -> list[Sample]:
    found = []
    for d in NUMBERS:
        attributes = {"stride": (2,), "padding": ((1, 2),), "dilation": (2,), "groups": 1}
        found.append(Sample("conv", (tensor(d, i, j, l), tensor(d, k, j, 3)), attributes))
    grouped = {"stride": (1, 2), "padding": ((0, 0), (1, 1)), "dilation": (1, 1), "groups": 2}
    found.append(Sample("conv", (tensor("f32", i, 2 * j, l, 5), tensor("f32", 2 * k, j, 2, 2)), grouped))
    pointwise = {"stride": (), "padding": (), "dilation": (), "groups": 1}
    found.append(Sample("conv", (tensor("f32", i, j), tensor("f32", k, j)), pointwise))
    for monoid in ("sum", "max", "min"):
        for d in MONOIDS[monoid]:
            attributes = {"monoid": monoid, "window": (2, 3), "stride": (1, 2), "padding": ((0, 1), (2, 0))}
            found.append(Sample("reduce_window", (tensor(d, i, j, k),), attributes))
    return found


def _creation() -> list[Sample]:
    arrays = (np.float32(2), np.arange(6, dtype=np.int8).reshape(2, 3), np.zeros((0, 2), bool))
    found = [Sample("constant", (), {"value": Array(np.asarray(array))}) for array in arrays]
    found.append(Sample("iota", (), {"length": i + 1}))
    found += [Sample("index", (), {"value": value}) for value in (i - 3, ge(i, j), lt(i, 2))]
    found.append(Sample("random_bits", (), {"shape": (i, j), "site": "noise"}, {"seed": 3, "step": (1, 2)}))
    return found


def _quantised() -> list[Sample]:
    found = []
    for dtype in (np.dtype("float32"), dtypes.BFLOAT16):
        bytes_, pairs = (tensor("i8", i, j, 12), tensor("f16", i, j, 3)), (tensor("u8", i, 32), tensor("f32", i, 2))
        found += [Sample("dequantize", bytes_, {"dtype": dtype}), Sample("dequantize", pairs, {"dtype": dtype})]
        found += [Sample("dequantize", (*own, own[1]), {"dtype": dtype}) for own in (bytes_, pairs)]
    return found


SAMPLES: list[Sample] = [
    *(Sample("shard", (tensor(d, i, j),), {"axis": -1, "over": ("data",)}) for d in ("f32", "bf16", "i32", "bool")),
    *_elementwise(),
    *_reductions(),
    *_contractions(),
    *_factors(),
    *_complex(),
    *_shapes(),
    *_indexing(),
    *_windows(),
    *_creation(),
    *_quantised(),
]
