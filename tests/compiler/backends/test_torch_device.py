"""Programs on a device of torch. The meta device has shapes alone and refuses to meet tensors of any other."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import polyrhythm as pr
from polyrhythm.compiler.backends.torch.ops import IMPLEMENTATIONS, from_numpy
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.compiler.ir.ops.record import concrete
from tests.compiler.backends.ops_cases import cases_of, some_lengths
from tests.devices.mesh_programs import decoding, training


@pytest.mark.parametrize("op", sorted(set(TABLE) - {"host", "opaque"}))
def test_every_operation_stays_on_the_device(op: str) -> None:
    for sample in cases_of(op):
        rng = np.random.default_rng(3)
        for lengths in some_lengths(rng):
            arrays = [from_numpy(array).to("meta") for array in sample.arrays(lengths, rng)]
            attributes = concrete(sample.attributes, lengths.__getitem__) | sample.extra
            with torch.device("meta"):
                found = IMPLEMENTATIONS[op](*arrays, **attributes)
            assert found.device.type == "meta", sample


def test_programs_stay_on_the_device() -> None:
    outputs, _, _, _, I = training()
    names = {"x": (5, 8), "y": (5,), "w1": (8, 16), "w2": (16,)}
    given: dict[str, Any] = {name: torch.zeros(shape) for name, shape in names.items()}
    found = pr.compile(outputs, backend="torch", device="meta")(**given, bounds={I: 3})
    assert {name: (value.device.type, tuple(value.shape)) for name, value in found.items()} == {
        "losses": ("meta", (3,)),
        "w1": ("meta", (8, 16)),
        "w2": ("meta", (16,)),
        "m1": ("meta", (8, 16)),
    }
    h, _, _, T, data = decoding()
    given = {name: torch.zeros(array.shape) for name, array in data.items()}
    assert pr.compile(h, backend="torch", device=torch.device("meta"))(**given, bounds={T: 6}).device.type == "meta"


def test_results_of_a_named_device() -> None:
    """Arrays come back as what came in, wherever the program ran; torch's own default device is as it was."""
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,))
    y = pr.recurrent((2,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.5 * y + x[t + 1] + pr.normal((2,), dims=(t,))
    expected = pr.evaluate(y, {"x": np.ones((4, 2), "float32")})
    program = pr.compile(y, backend="torch", device="cpu")
    with torch.device("meta"):  # somebody else's default
        found = program(x=np.ones((4, 2), "float32"))
        assert torch.zeros(1).device.type == "meta"
    assert isinstance(found, np.ndarray)
    assert np.allclose(found, expected)

    def rows() -> Iterator[np.ndarray]:
        yield from np.ones((4, 2), "float32")

    steps = list(program.stream(over=t, x=rows(), bounds={T: 4}))
    assert np.allclose(np.stack(steps), expected)


def test_devices_that_are_not_there() -> None:
    x = pr.input("x", (2,))
    for backend, device in (("torch", "abacus"), ("torch", "cuda:77"), ("numpy", "cpu"), ("jax", "cpu")):
        with pytest.raises(pr.errors.ShardingError) as found:
            pr.compile(x * 2, backend=backend, device=device)
        assert "fix: " in str(found.value)
