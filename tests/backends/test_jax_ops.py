"""Operations on padded arrays against the NumPy functions: static shapes, and lengths known only at run time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from polyrhythm.backends.jax.ops import IMPLEMENTATIONS, Padded, apply
from polyrhythm.ir import dtypes
from polyrhythm.ir.conditions import TRUE, Condition
from polyrhythm.ir.ops import TABLE
from polyrhythm.ir.ops.record import attribute_terms, map_attribute
from polyrhythm.ir.terms import Symbol, Term
from polyrhythm.ir.types import Array, TensorType
from tests.backends.ops_cases import EXACT_ORDER, assert_same, cases_of, some_lengths, with_extremes
from tests.ir.ops.samples import SYMBOLS, Lengths, Sample, shape_of

every_operation = pytest.mark.parametrize("op", sorted(TABLE))


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_every_operation_is_implemented() -> None:
    assert set(IMPLEMENTATIONS) == set(TABLE)


class Compiled:
    """A call of an operation in which the lengths of some symbols are known only at run time."""

    def __init__(self, sample: Sample, dynamic: set[Symbol], lengths: Sequence[Lengths], seed: int) -> None:
        self.sample, self.dynamic, self.lengths = sample, dynamic, lengths
        self.rng = np.random.default_rng(seed)
        self.type = TABLE[sample.op].type_rule(sample.operands, sample.attributes, TRUE)
        self.capacities = [self._capacities(operand) for operand in sample.operands]
        self.capacity = self._capacities(self.type)
        shapes = [length for operand in (*sample.operands, self.type) for length in operand.shape]
        used = [*shapes, *(t for value in sample.attributes.values() for t in attribute_terms(value))]
        self.terms = [term for term in dict.fromkeys(used) if self._is_dynamic(term)]
        # Lengths of one term are one tracer in some calls, and several in others: only the first can be recognised.
        self.is_shared = seed % 2 == 0

    def _is_dynamic(self, term: Term | Condition) -> bool:
        return any(symbol in self.dynamic for symbol in term.symbols)

    def _capacities(self, operand: TensorType) -> tuple[int, ...]:
        shapes = np.array([shape_of(operand, lengths) for lengths in self.lengths]).reshape(
            len(self.lengths), operand.rank
        )
        extra = [int(self.rng.integers(0, 3)) if self._is_dynamic(n) else 0 for n in operand.shape]
        return tuple(int(n) + more for n, more in zip(shapes.max(0), extra, strict=True))

    def __call__(self, arrays: list[jax.Array], values: list[jax.Array]) -> jax.Array:
        known = dict(zip(self.terms, values, strict=True))

        def lookup(term: Term | Condition) -> Any:
            if term in known:
                return known[term] if self.is_shared else jnp.copy(known[term])
            return term.evaluate(self.lengths[0].__getitem__)

        def lengths(operand: TensorType) -> tuple[Any, ...]:
            return tuple(map(lookup, operand.shape))

        attributes = {name: map_attribute(value, lookup) for name, value in self.sample.attributes.items()}
        attributes = {k: v.value if isinstance(v, Array) else v for k, v in attributes.items()}
        operands = [Padded(a, lengths(o)) for a, o in zip(arrays, self.sample.operands, strict=True)]
        given = (self.capacity, lengths(self.type), self.type.dtype)
        return apply(self.sample.op, operands, attributes | self.sample.extra, *given).array

    def inputs(self, arrays: list[np.ndarray], lengths: Lengths) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The arguments: operands surrounded by garbage, and the values of the terms."""
        padded = [self._with_garbage(a, capacity) for a, capacity in zip(arrays, self.capacities, strict=True)]
        values = [term.evaluate(lengths.__getitem__) for term in self.terms]
        return padded, [np.array(v, np.bool_ if isinstance(v, bool) else np.int32) for v in values]

    def _with_garbage(self, array: np.ndarray, capacity: tuple[int, ...]) -> np.ndarray:
        if dtypes.is_float(array.dtype):
            values = np.array([np.nan, np.inf, -np.inf, 3e4])
        elif array.dtype == dtypes.BOOL:
            values = np.array([True, False])
        else:
            limits = np.iinfo(array.dtype)
            values = np.array([limits.min, limits.max, 77], array.dtype)
        whole = self.rng.choice(values, capacity).astype(array.dtype)
        whole[tuple(map(slice, array.shape))] = array
        return whole


def check(calls: list[Compiled], draws: int = 1) -> None:
    """All calls, compiled as one function, against NumPy at all their lengths."""
    together: Callable[..., Any] = jax.jit(
        lambda inputs: [call(*args) for call, args in zip(calls, inputs, strict=True)]
    )
    rng = np.random.default_rng(8)
    for number in range(len(calls[0].lengths)):
        for draw in range(draws):
            given = [call.sample.arrays(call.lengths[number], rng) for call in calls]
            if draw and calls[0].sample.op not in EXACT_ORDER:
                given = [with_extremes(rng, arrays) for arrays in given]
            inputs = [call.inputs(arrays, call.lengths[number]) for call, arrays in zip(calls, given, strict=True)]
            for call, arrays, actual in zip(calls, given, together(inputs), strict=True):
                lengths = call.lengths[number]
                print(f"sample: {call.sample} at {lengths}, dynamic {call.dynamic}")
                expected = call.sample.call(arrays, lengths)
                assert actual.shape == call.capacity
                assert_same(np.asarray(actual)[tuple(map(slice, expected.shape))], expected)


@every_operation
def test_static_shapes(op: str) -> None:
    rng = np.random.default_rng(1)
    plain, with_empty = dict(zip(SYMBOLS, (2, 3, 4, 5), strict=True)), dict(zip(SYMBOLS, (2, 0, 3, 1), strict=True))
    calls = [Compiled(sample, set(), [plain], 0) for sample in cases_of(op)]
    check(calls, draws=2)
    check([Compiled(sample, set(), [with_empty], 0) for sample in cases_of(op) if rng.random() < 0.3] or calls[:1])


@every_operation
def test_lengths_known_at_run_time(op: str) -> None:
    rng = np.random.default_rng(2)
    calls = []
    for number, sample in enumerate(cases_of(op)):
        dynamic = {symbol for symbol in SYMBOLS if rng.random() < 0.8}
        fixed = {symbol: int(rng.integers(1, 4)) for symbol in SYMBOLS if symbol not in dynamic}
        lengths = [given | fixed for given in some_lengths(rng)]
        calls.append(Compiled(sample, dynamic, lengths, number))
    check(calls, draws=2)
