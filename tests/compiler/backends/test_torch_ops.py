"""Operations on torch tensors against the NumPy functions."""

import numpy as np
import pytest
import torch

from polyrhythm.compiler.backends.torch.ops import IMPLEMENTATIONS, TORCH_DTYPES, from_numpy, to_numpy
from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import concrete
from tests.compiler.backends.ops_cases import CASES, EXACT_ORDER, assert_same, cases_of, some_lengths, with_extremes
from tests.compiler.ir.ops.samples import SYMBOLS, elements


def test_every_operation_is_implemented() -> None:
    assert set(IMPLEMENTATIONS) == set(TABLE) - {"opaque"}  # which the generated code calls itself


@pytest.mark.parametrize("op", sorted(TABLE))
def test_as_numpy(op: str) -> None:
    for sample in cases_of(op):
        rng = np.random.default_rng(3)
        for lengths in some_lengths(rng):
            arrays = sample.arrays(lengths, rng)
            for given in (arrays, with_extremes(rng, arrays)):
                print(f"sample: {sample} at {lengths}")
                if given is not arrays and op in EXACT_ORDER:
                    continue
                attributes = concrete(sample.attributes, lengths.__getitem__) | sample.extra
                actual = IMPLEMENTATIONS[op](*map(from_numpy, given), **attributes)
                expected = sample.call(given, lengths)
                assert actual.dtype == TORCH_DTYPES[expected.dtype]
                assert_same(to_numpy(actual, expected.dtype), expected)


@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
def test_every_dtype_goes_there_and_back(dtype: np.dtype) -> None:
    rng = np.random.default_rng(4)
    for shape in ((), (0,), (3, 4)):
        array = with_extremes(rng, [elements(rng, dtype, shape)])[0]
        for given in (array, array.T, array[::-1] if array.ndim else array):
            tensor = from_numpy(given)
            assert tensor.dtype == TORCH_DTYPES[dtype]
            back = to_numpy(tensor, dtype)
            assert back.dtype == dtype
            np.testing.assert_array_equal(back, given)


def test_arrays_are_shared_where_they_can_be_written() -> None:
    array = np.zeros(3, np.float32)
    from_numpy(array)[0] = 1
    assert array[0] == 1
    array.setflags(write=False)
    from_numpy(array)[1] = 1
    assert array[1] == 0


def test_a_tensor_of_another_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match=r"torch.int64 does not hold elements of uint32"):
        to_numpy(torch.zeros(2, dtype=torch.int64), dtypes.UINT32)


def test_operands_are_left_alone() -> None:
    rng, lengths = np.random.default_rng(5), dict.fromkeys(SYMBOLS, 3)
    for sample in CASES:
        arrays = sample.arrays(lengths, rng)
        tensors = [from_numpy(array.copy()) for array in arrays]
        IMPLEMENTATIONS[sample.op](*tensors, **concrete(sample.attributes, lengths.__getitem__), **sample.extra)
        for tensor, array in zip(tensors, arrays, strict=True):
            np.testing.assert_array_equal(to_numpy(tensor, array.dtype), array)


def test_unsigned_division_of_every_size() -> None:
    edges = [0, 1, 2, 3, 2**31, 2**32 - 1, 2**62 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
    values = np.array(edges, np.uint64)
    x, y = np.repeat(values, len(values)), np.tile(values, len(values))
    for op in ("floordiv", "mod", "pow", "lt", "maximum"):
        expected = TABLE[op].numpy(x, y)
        np.testing.assert_array_equal(
            to_numpy(IMPLEMENTATIONS[op](from_numpy(x), from_numpy(y)), expected.dtype), expected
        )


def test_a_slice_that_leaves_the_axis_is_refused() -> None:
    x = torch.zeros(3)
    for start, length, step in ((2, 2, 1), (-1, 1, 1), (1, 3, -1), (0, -1, 1)):
        with pytest.raises(ValueError, match="leaves an axis of length 3"):
            IMPLEMENTATIONS["slice"](x, starts=(start,), lengths=(length,), steps=(step,))


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64"])
def test_the_least_integer(name: str) -> None:
    """A float can be the least integer exactly, and its remainder by minus one, whose quotient does not exist, is 0."""
    least = np.iinfo(name).min
    floats = from_numpy(np.array([least, -3.5]))
    cast = to_numpy(IMPLEMENTATIONS["cast"](floats, dtype=np.dtype(name)), np.dtype(name))
    assert cast.tolist() == [least, -3]
    values, minus_one = from_numpy(np.array([least, 5], name)), from_numpy(np.array([-1, -1], name))
    assert to_numpy(IMPLEMENTATIONS["mod"](values, minus_one), np.dtype(name)).tolist() == [0, 0]
