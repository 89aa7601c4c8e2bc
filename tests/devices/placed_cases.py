"""Programs compiled without a mesh, called with arrays that lie on several devices."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import polyrhythm as pr


def _sharded(array: np.ndarray, *spec: str | None) -> jax.Array:
    return jax.device_put(array, NamedSharding(jax.make_mesh((4,), ("data",)), PartitionSpec(*spec)))


def _rows() -> tuple[pr.Program, pr.Dim, pr.Bound]:
    b, B = pr.dim("b")
    x = pr.input("x", (3,), (b,))
    return pr.compile(pr.tanh(x)), b, B


def case_numpy_then_sharded() -> str:
    program, _, _ = _rows()
    x = np.arange(24, dtype="float32").reshape(8, 3)
    first = program(x=x)
    second = program(x=_sharded(x, "data"))
    assert np.allclose(first, np.tanh(x))
    assert np.allclose(second, np.tanh(x))
    assert len(second.sharding.device_set) == 4, second.sharding
    assert np.array_equal(program(x=x), first)
    return "ok"


def case_odd_lengths_stay() -> str:
    program, _, _ = _rows()
    x = np.arange(36, dtype="float32").reshape(12, 3)
    result = program(x=_sharded(x, "data"))
    assert result.shape == (12, 3)
    assert np.allclose(result, np.tanh(x))
    assert len(result.sharding.device_set) == 4, result.sharding
    return "ok"


def _running() -> tuple[pr.Program, pr.Dim]:
    t, _T = pr.dim("t")
    x = pr.input("x", (8,), (t,))
    y = pr.recurrent((8,), (t,))
    y[0] = x[0]
    y[t + 1] = 0.5 * y + x[t + 1] + y[0 : t + 1].sum(0)
    return pr.compile(y), t


def case_stream() -> str:
    program, t = _running()
    x = np.linspace(0, 1, 40, dtype="float32").reshape(5, 8)
    expected = program(x=x)
    steps = list(program.stream(over=t, x=_sharded(x, None, "data")))
    assert np.allclose(np.stack(steps), expected, rtol=1e-5)
    return "ok"


def case_growing() -> str:
    t, T = pr.dim("t")
    start = pr.input("start", (8,))
    h = pr.recurrent((8,), (t,))
    weights = pr.softmax(h[0 : t + 1] @ h)
    h[0] = start
    h[t + 1] = pr.tanh(weights @ h[0 : t + 1]) + 0.1
    program = pr.compile(h[T - 1])
    given = np.linspace(-1, 1, 8, dtype="float32")
    expected = program(start=given, bounds={T: 1500})
    found = program(start=_sharded(given, "data"), bounds={T: 1500})
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5), np.abs(found - expected).max()
    return "ok"


def case_device() -> str:
    """Results stay on the device that was asked for, at lengths that are cut too."""
    (b, B), (t, T) = pr.dim("b"), pr.dim("t")
    x, last = pr.input("x", (3,), (b, t)), jax.devices()[3]
    y = pr.recurrent((3,), (b, t))
    y[b, 0] = x[b, 0]
    y[b, t + 1] = y + x[b, t + 1]
    program = pr.compile({"y": y, "sum": y[0:B, T - 1].sum(0)}, device=last)
    given = np.arange(90, dtype="float32").reshape(5, 6, 3)
    found = program(x=jax.device_put(given, last))
    assert {device for array in found.values() for device in array.devices()} == {last}, found["y"].sharding
    np.testing.assert_allclose(found["y"], given.cumsum(1))
    np.testing.assert_allclose(program(x=given)["y"], given.cumsum(1))
    steps = list(program.stream(over=t, x=jax.device_put(given, last)))
    assert steps[0]["y"].devices() == {last}
    np.testing.assert_allclose(np.stack([step["y"] for step in steps], 1), given.cumsum(1))
    return "ok"
