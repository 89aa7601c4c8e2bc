"""Operations on torch tensors against the NumPy functions."""

import numpy as np
import pytest

from polyrhythm.backends.torch.ops import IMPLEMENTATIONS, TORCH_DTYPES, from_numpy, to_numpy
from polyrhythm.ir.ops import TABLE
from polyrhythm.ir.ops.record import concrete
from tests.backends.ops_cases import EXACT_ORDER, assert_same, cases_of, some_lengths, with_extremes


def test_every_operation_is_implemented() -> None:
    assert set(IMPLEMENTATIONS) == set(TABLE)


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
