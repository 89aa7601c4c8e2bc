"""What holds for every operation: the type rule tells the truth, and so does the signature."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import Labels, Role, Signature, map_attribute
from polyrhythm.compiler.ir.ops.reductions import COMBINE
from polyrhythm.compiler.ir.terms import ONE, Symbol, Term
from polyrhythm.compiler.ir.types import TensorType
from tests.compiler.ir.ops.samples import SAMPLES, SYMBOLS, Sample, shape_of

# An opaque operation is whatever its function is: tests/language/test_foreign.py
OPS = set(TABLE) - {"opaque"}
every_operation = pytest.mark.parametrize("op", sorted(OPS))


def samples_of(op: str) -> Iterator[Sample]:
    """The samples of an operation; one that fails is named."""
    for sample in SAMPLES:
        if sample.op == op:
            print(f"sample: {sample}")  # pytest shows the output of a test that fails
            yield sample


def some_lengths(rng: np.random.Generator) -> Iterator[dict[Symbol, int]]:
    """Lengths of every kind: all empty, all one, one empty, and others."""
    yield dict.fromkeys(SYMBOLS, 0)
    yield dict.fromkeys(SYMBOLS, 1)
    for symbol in SYMBOLS:
        yield {other: 0 if other is symbol else int(rng.integers(1, 6)) for other in SYMBOLS}
    for _ in range(4):
        yield {symbol: int(rng.integers(0, 7)) for symbol in SYMBOLS}


def type_of(sample: Sample) -> TensorType:
    return TABLE[sample.op].type_rule(sample.operands, sample.attributes, TRUE)


def signature_of(sample: Sample) -> Signature:
    return TABLE[sample.op].signature(sample.operands, sample.attributes)


def test_every_operation_has_samples() -> None:
    assert {sample.op for sample in SAMPLES} == OPS


def test_every_record_is_filed_under_its_name() -> None:
    assert all(op.name == name for name, op in TABLE.items())


@every_operation
def test_the_type_rule_says_what_numpy_returns(op: str) -> None:
    for sample in samples_of(op):
        rng = np.random.default_rng(1)
        symbolic = type_of(sample)
        for lengths in some_lengths(rng):
            result = sample.call(sample.arrays(lengths, rng), lengths)
            assert isinstance(result, np.ndarray)
            assert result.shape == shape_of(symbolic, lengths)
            assert result.dtype == symbolic.dtype


@every_operation
def test_the_type_rule_agrees_with_itself_on_plain_lengths(op: str) -> None:
    for sample in samples_of(op):
        rng = np.random.default_rng(2)
        symbolic = type_of(sample)
        for lengths in some_lengths(rng):
            plain = {symbol: Term(length) for symbol, length in lengths.items()}
            operands = tuple(
                TensorType(tuple(length.substitute(plain) for length in operand.shape), operand.dtype)
                for operand in sample.operands
            )
            attributes = {
                name: map_attribute(value, lambda term: term.substitute(plain))  # noqa: B023
                for name, value in sample.attributes.items()
            }
            concrete = TABLE[sample.op].type_rule(operands, attributes, TRUE)
            assert concrete.dtype == symbolic.dtype
            assert shape_of(concrete, {}) == shape_of(symbolic, lengths)


@every_operation
def test_operands_are_left_alone(op: str) -> None:
    for sample in samples_of(op):
        rng = np.random.default_rng(3)
        lengths = dict.fromkeys(SYMBOLS, 3)
        arrays = sample.arrays(lengths, rng)
        before = [array.copy() for array in arrays]
        sample.call(arrays, lengths)
        for array, copy in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, copy)


@every_operation
def test_the_signature_is_well_formed(op: str) -> None:
    for sample in samples_of(op):
        signature, result = signature_of(sample), type_of(sample)
        typed = [*zip(sample.operands, signature.operands, strict=True), (result, signature.result)]
        lengths: dict[int, Term] = {}
        for operand, labels in typed:
            assert len(labels) == operand.rank
            for label, length in zip(labels, operand.shape, strict=True):
                if label is None:
                    assert length is ONE, "only axes of length one go without a label"
                else:
                    assert lengths.setdefault(label, length) is length, "axes of one label have one length"
        for label, role in enumerate(signature.roles):
            if role.kind == "reduce":
                assert label not in signature.result
            if role.kind in ("reduce", "scan"):
                assert role.monoid in COMBINE


class Resizable:
    """A sample at some lengths, with one label of which parts can be taken."""

    def __init__(self, sample: Sample, label: int, rng: np.random.Generator) -> None:
        signature = signature_of(sample)
        self.sample, self.label, self.signature = sample, label, signature
        self.lengths = {symbol: int(rng.integers(1, 5)) for symbol in SYMBOLS}
        self.symbol = self._symbol()
        if self.symbol:
            self.lengths[self.symbol] = 6
        self.arrays = sample.arrays(self.lengths, rng)
        self.size = 6 if self.symbol else self._literal_length()
        self.whole = sample.call(self.arrays, self.lengths)

    def _axes(self) -> list[Term]:
        typed = [*zip(self.sample.operands, self.signature.operands, strict=True)]
        typed.append((type_of(self.sample), self.signature.result))
        return [n for t, labels in typed for n, label in zip(t.shape, labels, strict=True) if label == self.label]

    def _symbol(self) -> Symbol | None:
        length = self._axes()[0]
        symbols = [symbol for symbol in SYMBOLS if length is Term.of(symbol)]
        return symbols[0] if symbols else None

    def _literal_length(self) -> int:
        return self._axes()[0].evaluate(self.lengths.__getitem__)

    def part(self, start: int, stop: int) -> np.ndarray:
        """The result for a part of every operand."""
        lengths = {**self.lengths, self.symbol: stop - start} if self.symbol else self.lengths
        pairs = zip(self.arrays, self.signature.operands, strict=True)
        return self.sample.call([cut(a, labels, self.label, start, stop) for a, labels in pairs], lengths)

    def part_of_result(self, start: int, stop: int) -> np.ndarray:
        return cut(self.whole, self.signature.result, self.label, start, stop)


def cut(array: np.ndarray, labels: Labels, label: int, start: int, stop: int) -> np.ndarray:
    return array[tuple(slice(start, stop) if own == label else slice(None) for own in labels)]


def roles_of(op: str, kind: str) -> Iterator[tuple[Sample, int, Role]]:
    for sample in samples_of(op):
        signature = signature_of(sample)
        used = {label for labels in (*signature.operands, signature.result) for label in labels}
        yield from ((sample, n, r) for n, r in enumerate(signature.roles) if r.kind == kind and n in used)


def assert_close(actual: np.ndarray, expected: np.ndarray, magnitude: float = 1.0) -> None:
    """Equal for exact dtypes, and within the rounding of a few additions for floats."""
    assert actual.dtype == expected.dtype
    if not dtypes.is_float(actual.dtype):
        np.testing.assert_array_equal(actual, expected)
        return
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}[actual.dtype.name]
    wide = np.float64
    np.testing.assert_allclose(actual.astype(wide), expected.astype(wide), tolerance, tolerance * magnitude)


@every_operation
def test_a_parallel_axis_can_be_cut(op: str) -> None:
    for sample, label, _ in roles_of(op, "parallel"):
        call = Resizable(sample, label, np.random.default_rng(4))
        for start, stop in ((0, call.size), (1, 3), (2, 2), (call.size - 1, call.size)):
            if 0 <= start <= stop <= call.size:
                assert_close(call.part(start, stop), call.part_of_result(start, stop))


@every_operation
def test_a_reduced_axis_can_be_split(op: str) -> None:
    for sample, label, role in roles_of(op, "reduce"):
        call = Resizable(sample, label, np.random.default_rng(5))
        assert role.monoid is not None
        for middle in range(call.size + 1):
            with np.errstate(all="ignore"):
                first, second = call.part(0, middle), call.part(middle, call.size)
                combined = COMBINE[role.monoid](first, second)
            assert_close(np.asarray(combined), call.whole, magnitude=10.0)


@every_operation
def test_a_scan_of_a_prefix_is_a_prefix_of_the_scan(op: str) -> None:
    for sample, label, role in roles_of(op, "scan"):
        call = Resizable(sample, label, np.random.default_rng(6))
        assert role.monoid is not None
        for middle in range(call.size + 1):
            assert_close(call.part(0, middle), call.part_of_result(0, middle))
        # And the rest is the scan of the rest, combined with the last element of the prefix.
        for middle in range(1, call.size):
            last, rest = call.part_of_result(middle - 1, middle), call.part(middle, call.size)
            with np.errstate(all="ignore"):
                combined = np.asarray(COMBINE[role.monoid](last, rest))
            assert_close(combined, call.part_of_result(middle, call.size), magnitude=10.0)


def test_the_laws_apply_to_most_operations() -> None:
    """A signature that calls everything opaque would pass the tests above."""
    kinds = {kind: [op for op in sorted(OPS) if any(roles_of(op, kind))] for kind in ("parallel", "reduce", "scan")}
    assert OPS - set(kinds["parallel"]) == {"constant", "iota", "index", "random_bits"}
    assert set(kinds["reduce"]) == {"reduce", "einsum", "grouped", "conv"}
    assert set(kinds["scan"]) == {"cumulative"}
    monoids = {role.monoid for op in sorted(OPS) for _, _, role in roles_of(op, "reduce")}
    assert monoids == {"sum", "prod", "max", "min", "any", "all"}


def kept(sample: Sample) -> list[int]:
    """The axes of the result that carry a parallel label."""
    signature = signature_of(sample)
    parallel = [label for label, role in enumerate(signature.roles) if role.kind == "parallel"]
    return [axis for axis, label in enumerate(signature.result) if label in parallel]


@pytest.mark.parametrize(
    ("number", "axes"), list(enumerate([[0, 2], [0, 2], [0, 1], [0, 3], [1], [0, 1], []])), ids=str
)
def test_reshape_knows_which_axes_it_keeps(number: int, axes: list[int]) -> None:
    reshapes = [sample for sample in SAMPLES if sample.op == "reshape"]
    assert kept(reshapes[number]) == axes


def test_labels_of_every_pair_of_broadcast_axes() -> None:
    for a, b in product((1, 3), (1, 3)):
        operands = tuple(TensorType((Term(n),), dtypes.FLOAT32) for n in (a, b))
        signature = TABLE["add"].signature(operands, {})
        expected = tuple((0,) if n == max(a, b) else (None,) for n in (a, b))
        assert signature == Signature(expected, (0,), (Role("parallel"),))
