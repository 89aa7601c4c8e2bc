"""Operations on padded arrays against the NumPy functions: static shapes, and lengths known only at run time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from polyrhythm.compiler.backends.jax.ops import IMPLEMENTATIONS, IndexRangeError, Padded, apply
from polyrhythm.compiler.backends.jax.ops.factors import IMPLEMENTATIONS as FACTORS
from polyrhythm.compiler.backends.jax.products import choose
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.conditions import TRUE, Condition
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.ops.record import attribute_terms, map_attribute
from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.ir.types import Array, TensorType
from tests.compiler.backends.ops_cases import CASES, EXACT_ORDER, assert_same, cases_of, some_lengths, with_extremes
from tests.compiler.ir.ops.samples import SYMBOLS, Lengths, Sample, shape_of

every_operation = pytest.mark.parametrize("op", sorted(set(TABLE) - {"opaque"}))


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_every_operation_is_implemented() -> None:
    assert set(IMPLEMENTATIONS) == set(TABLE) == {case.op for case in CASES} | {"opaque"}


class Compiled:
    """A call of an operation in which the lengths of some symbols are known only at run time."""

    def __init__(self, sample: Sample, dynamic: set[Symbol], lengths: Sequence[Lengths], seed: int) -> None:
        self.sample, self.dynamic, self.lengths = sample, dynamic, lengths
        self.rng = np.random.default_rng(seed)
        self.type = TABLE[sample.op].type_rule(sample.operands, sample.attributes, TRUE)
        self.capacities = [self._capacities(operand, (0, 2, 9)) for operand in sample.operands]
        self.capacity = self._capacities(self.type, (0, 1))
        shapes = [length for operand in (*sample.operands, self.type) for length in operand.shape]
        used = [*shapes, *(t for value in sample.attributes.values() for t in attribute_terms(value))]
        self.terms = [term for term in dict.fromkeys(used) if self._is_dynamic(term)]
        # Lengths of one term are one tracer in some calls, and several in others: only the first can be recognised.
        self.is_shared = seed % 2 == 0

    def _is_dynamic(self, term: Term | Condition) -> bool:
        return any(symbol in self.dynamic for symbol in term.symbols)

    def _capacities(self, operand: TensorType, extras: tuple[int, ...]) -> tuple[int, ...]:
        shapes = np.array([shape_of(operand, lengths) for lengths in self.lengths]).reshape(
            len(self.lengths), operand.rank
        )
        extra = [int(self.rng.choice(extras)) if self._is_dynamic(n) else 0 for n in operand.shape]
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
        elif dtypes.kind(array.dtype) == "complex":
            values = np.array([np.nan, np.inf, 3e4j])
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


def some_of(cases: list[Sample], most: int) -> list[Sample]:
    """A choice that stays the same: compiling them all takes minutes."""
    chosen = np.random.default_rng(0).permutation(len(cases))[:most]
    return [cases[number] for number in sorted(chosen)]


def static_calls(cases: list[Sample], *lengths: int) -> list[Compiled]:
    return [Compiled(sample, set(), [dict(zip(SYMBOLS, lengths, strict=True))], 0) for sample in cases]


def dynamic_calls(cases: list[Sample], seed: int) -> list[Compiled]:
    """Calls in which most symbols are known only at run time, at lengths of every kind."""
    rng = np.random.default_rng(seed)
    calls = []
    for number, sample in enumerate(cases):
        dynamic = {symbol for symbol in SYMBOLS if rng.random() < 0.8}
        fixed = {symbol: int(rng.integers(1, 4)) for symbol in SYMBOLS if symbol not in dynamic}
        calls.append(Compiled(sample, dynamic, [given | fixed for given in some_lengths(rng)], seed + number))
    return calls


@every_operation
def test_static_shapes(op: str) -> None:
    check(static_calls(some_of(cases_of(op), 5), 2, 3, 4, 5), draws=2)


@every_operation
def test_lengths_known_at_run_time(op: str) -> None:
    check(dynamic_calls(some_of(cases_of(op), 14), seed=2), draws=2)


def test_contractions_by_our_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all matrices were large enough for it."""
    for limit in ("LEAST", "LEAST_BATCH"):
        monkeypatch.setattr(choose, limit, 0)
    for dtype in (dtypes.FLOAT32, dtypes.BFLOAT16):
        cases = [_with(case, dtype) for case in cases_of("einsum")]
        check(static_calls(cases, 2, 3, 4, 5), draws=2)
        check(dynamic_calls(cases, seed=5), draws=2)


def _with(sample: Sample, dtype: np.dtype) -> Sample:
    return replace(sample, operands=tuple(replace(operand, dtype=dtype) for operand in sample.operands))


@pytest.mark.slow
@every_operation
def test_all_cases(op: str) -> None:
    check(static_calls(cases_of(op), 2, 3, 4, 5), draws=2)
    check(static_calls(cases_of(op), 2, 0, 3, 1), draws=2)
    for seed in (20, 21):
        check(dynamic_calls(cases_of(op), seed), draws=2)


def test_static_shapes_without_elements() -> None:
    check(static_calls([sample for op in sorted(TABLE) for sample in cases_of(op)[:2]], 2, 0, 3, 1))


def test_types_stay_narrow() -> None:
    """With 64-bit types enabled nothing becomes one by itself, and no result is weakly typed."""
    narrow = [sample for op in sorted(TABLE) for sample in some_of(cases_of(op), 5)]
    for call in dynamic_calls(narrow, seed=3):
        print(f"sample: {call.sample}")
        used = (*call.sample.operands, call.type)
        inputs = call.inputs(call.sample.arrays(call.lengths[0], call.rng), call.lengths[0])
        jaxpr = jax.make_jaxpr(call)(*inputs)
        assert not jaxpr.out_avals[0].weak_type
        # Keys are sorted packed with their positions, which is what 64 bits are for. JAX's factorisations have masks.
        if all(operand.dtype.itemsize < 8 for operand in used) and call.sample.op not in ("argsort", *FACTORS):
            wide = [v.aval for e in equations(jaxpr) for v in e.outvars if v.aval.dtype.itemsize == 8]
            assert not wide


KEYS: dict[str, list[Any]] = {
    "float32": [0.0, -0.0, 1e-45, -1e-45, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0, 0.0, -0.0, 3.4e38],
    "bfloat16": [0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5, 1.5, 0.0],
    "int32": [0, -1, 1, -(2**31), 2**31 - 1, 0, -1],
    "uint32": [0, 2**32 - 1, 2**31, 2**31 - 1, 0, 1],
    "int8": [0, -128, 127, -1, 0],
    "bool": [True, False, True, False],
}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", KEYS)
def test_packed_keys_sort_like_the_oracle(dtype: str, descending: bool) -> None:
    """Extreme keys, in many orders, with and without garbage behind them."""
    rng = np.random.default_rng(0)
    for padding in (0, 3):
        for _ in range(5):
            keys = rng.permutation(np.array(KEYS[dtype], dtypes.parse(dtype)))
            room = np.concatenate([keys, keys[:1].repeat(padding)])
            length = np.int32(len(keys)) if padding else len(keys)

            def order(x: jax.Array, n: Any) -> jax.Array:
                attributes = {"axis": 0, "descending": descending}
                return apply("argsort", [Padded(x, (n,))], attributes, x.shape, (n,), dtypes.INT32).array

            found = jax.jit(order)(room, length) if padding else order(jnp.asarray(room), length)
            expected = TABLE["argsort"].numpy(keys, axis=0, descending=descending)
            np.testing.assert_array_equal(np.asarray(found)[: len(keys)], expected)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a traced function, those of the functions it calls included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def primitives(call: Compiled) -> list[str]:
    inputs = call.inputs(call.sample.arrays(call.lengths[0], call.rng), call.lengths[0])
    return [equation.primitive.name for equation in equations(jax.make_jaxpr(call)(*inputs).jaxpr)]


PLAIN = {
    "reduce": {
        "convert_element_type",
        "reduce_sum",
        "reduce_prod",
        "reduce_max",
        "reduce_min",
        "reduce_or",
        "reduce_and",
        "custom_jvp_call",  # the greatest and least of floats compare by themselves on CPU
        "reduce",
        "ge",
        "le",
        "ne",
        "or",
        "select_n",
    },
    "argreduce": {"convert_element_type", "argmax", "argmin"},
    "cumulative": {"convert_element_type", "cumsum", "cumprod", "cummax", "cummin"},
    "linear_scan": {
        "convert_element_type",
        "transpose",
        "scan",
        "mul",
        "add",
        "broadcast_in_dim",
        "iota",
        "gt",
        "lt",
        "select_n",
        "slice",
        "squeeze",
    },
    "argsort": {
        "convert_element_type",
        "bitcast_convert_type",
        "neg",
        "not",
        "iota",
        "sort",
        "shift_left",
        "shift_right_arithmetic",
        "and",
        "or",
        "xor",
        "eq",
        "ne",
        "select_n",
        "broadcast_in_dim",
        "jit",  # an operator of an array is a function of its own
    },
    "reshape": {"reshape", "broadcast_in_dim"},  # zeros, where there is no element
    "transpose": {"transpose"},
    "broadcast": {"broadcast_in_dim"},
    "concat": {"concatenate"},
    "pad": {"pad"},
    "slice": {"slice", "rev", "pad", "broadcast_in_dim"},
    "conv": {"convert_element_type", "pad", "conv_general_dilated", "reshape"},
    "reduce_window": {
        "convert_element_type",
        "pad",
        "reduce_window",
        "reduce_window_sum",
        "reduce_window_max",
        "reduce_window_min",
        "mul",
        "or",
    },
    "add": {"convert_element_type", "broadcast_in_dim", "add"},
    "iota": {"iota"},
    "constant": set(),
}


@pytest.mark.parametrize("op", PLAIN)
def test_static_shapes_pay_for_no_masks(op: str) -> None:
    for call in static_calls(cases_of(op), 2, 3, 4, 5):
        print(f"sample: {call.sample}")
        assert set(primitives(call)) <= PLAIN[op]


def test_contractions_reach_dot_general() -> None:
    """Whatever is summed is summed inside the product, never in a product that was stored first."""
    lengths = [dict(zip(SYMBOLS, (2, 3, 4, 5), strict=True))]
    seen = 0
    for sample in cases_of("einsum"):
        words, output = parse_spec(sample.attributes["spec"])
        contracted = [label for label in words[0] if label in words[-1] and label not in output]
        if len(words) == 2:
            for dynamic in (set(), set(SYMBOLS)):
                used = primitives(Compiled(sample, dynamic, lengths, 0))
                # A product of ours is a dot_general, or the kernel for few rows.
                assert used.count("dot_general") + used.count("polyrhythm_product") == (1 if contracted else 0)
                assert "mul" not in used or not contracted
                seen += bool(contracted)
    assert seen > 40


def test_a_contraction_of_an_unknown_length_compiles_to_a_dot() -> None:
    def contract(a: jax.Array, b: jax.Array, length: jax.Array) -> jax.Array:
        operands = [Padded(a, (64, length)), Padded(b, (length, 64))]
        return apply("einsum", operands, {"spec": "ij,jk->ik"}, (64, 64), (64, 64), dtypes.FLOAT32).array

    x, n = jnp.ones((64, 64), np.float32), np.int32(3)
    text = str(jax.jit(contract).lower(x, x, n).compile().as_text())
    assert any(word in text for word in (" dot(", "__onednn$matmul", "__cublas"))


def masks(zeros: bool, dtype: np.dtype) -> int:
    def contract(a: jax.Array, b: jax.Array, length: jax.Array) -> jax.Array:
        operands = [Padded(a, (4, length)), Padded(b, (length, 5), zeros=zeros)]
        return apply("einsum", operands, {"spec": "ij,jk->ik"}, (4, 5), (4, 5), dtype).array

    jaxpr = jax.make_jaxpr(contract)(jnp.ones((4, 8), dtype), jnp.ones((8, 5), dtype), np.int32(3))
    return sum(equation.primitive.name == "select_n" for equation in equations(jaxpr.jaxpr))


def test_an_operand_with_zeros_around_it_is_not_copied() -> None:
    assert masks(False, dtypes.FLOAT32) == 2
    assert masks(True, dtypes.FLOAT32) == 1
    assert masks(False, dtypes.INT32) == 1


@pytest.mark.parametrize(
    ("op", "operand", "shape", "expected"),
    [
        ("reshape", ("T",), ("T/4", 4), {"reshape", "pad"}),
        ("reshape", (2, "T", 6), (2, "T", 2, 3), {"reshape", "pad"}),
        ("reshape", ("T", 3, "S"), ("T", 3, 1, "S"), {"reshape", "pad"}),
    ],
)
def test_reshapes_that_need_no_gather(op: str, operand: Any, shape: Any, expected: set[str]) -> None:
    capacities = {"T": 8, "S": 4, "T/4": 3}

    def reshape(x: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        known = {"T": t, "S": s, "T/4": t // 4}
        lengths = tuple(known.get(n, n) for n in shape)
        result = tuple(capacities.get(n, n) for n in shape)
        value = Padded(x, tuple(known.get(n, n) for n in operand))
        return apply(op, [value], {"shape": lengths}, result, lengths, dtypes.FLOAT32).array

    x = jnp.zeros([capacities.get(n, n) for n in operand], np.float32)
    jaxpr = jax.make_jaxpr(reshape)(x, np.int32(8), np.int32(4))
    used = {equation.primitive.name for equation in jaxpr.eqns} - {"jit", "pjit"}
    assert used <= expected


def test_a_point_read_is_a_dynamic_slice_of_the_whole() -> None:
    """Reading one step of a buffer must not copy the buffer."""

    def read(x: jax.Array, t: jax.Array) -> jax.Array:
        attributes = {"starts": (t, 0), "lengths": (1, 3), "steps": (1, 1)}
        return apply("slice", [Padded(x, (t + 1, 3))], attributes, (1, 3), (1, 3), dtypes.FLOAT32).array

    jaxpr = jax.make_jaxpr(read)(jnp.zeros((8, 3), np.float32), np.int32(2))
    assert "pad" not in {equation.primitive.name for equation in jaxpr.eqns}


def test_a_seed_alone_or_a_step_alone_may_be_traced() -> None:
    """One counter is then derived while running, without steps or with the seed known."""
    shape, numpy = (3, 2), TABLE["random_bits"].numpy

    def draw(seed: Any, step: tuple[Any, ...]) -> jax.Array:
        attributes = {"shape": shape, "site": "a", "seed": seed, "step": step}
        return apply("random_bits", [], attributes, shape, shape, dtypes.UINT32).array

    words = np.array([7, 9], np.uint32)
    by_seed = jax.jit(lambda low, high: draw((low, high), ()))(*words)
    np.testing.assert_array_equal(by_seed, numpy(shape=shape, site="a", seed=7 | 9 << 32, step=()))
    by_step = jax.jit(lambda step: draw(7, (step,)))(np.int32(5))
    np.testing.assert_array_equal(by_step, numpy(shape=shape, site="a", seed=7, step=(5,)))


def test_seeds_and_steps_may_be_traced() -> None:
    shape, numpy = (3, 2), TABLE["random_bits"].numpy

    @jax.jit
    def draw(low: jax.Array, high: jax.Array, step: jax.Array) -> jax.Array:
        attributes = {"shape": shape, "site": "a", "seed": (low, high), "step": (step, 3)}
        return apply("random_bits", [], attributes, shape, shape, dtypes.UINT32).array

    for seed in (0, 1, 2**32 - 1, 2**63 + 5):
        for step in (0, 7, 2**31 - 1, -1):
            low, high = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)
            expected = numpy(shape=shape, site="a", seed=seed, step=(step, 3))
            np.testing.assert_array_equal(draw(low, high, np.int32(step)), expected)


def test_what_cannot_be_counted_is_refused() -> None:
    shape = (2**16, 2**16)
    with pytest.raises(IndexRangeError, match="32-bit index"):
        apply("random_bits", [], {"shape": shape, "site": "", "seed": 0, "step": ()}, shape, shape, dtypes.UINT32)
