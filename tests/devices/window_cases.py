"""Random convolutions and pools on meshes: images and weights made of arrays spread in any way, with gradients.

`python -m tests.devices.window_cases FIRST LAST` checks programs of some numbers, on as many devices as
`XLA_FLAGS=--xla_force_host_platform_device_count=8` makes, and goes on after a failure.
"""

import math
import random
import sys
import traceback
from typing import Any

import jax
import numpy as np

import polyrhythm as pr

DEVICES = jax.device_count()
FEW, MANY = 3, 40
MESHES: dict[int, tuple[tuple[int, ...], ...]] = {2: ((2,),), 4: ((2, 2), (4,)), 8: ((2, 4), (4, 2), (2, 2, 2), (8,))}
"""By the number of devices, the meshes that programs take by turns."""

CONVOLUTIONS = (pr.conv1d, pr.conv2d, pr.conv3d)
TRANSPOSED = (pr.conv_transpose1d, pr.conv_transpose2d, pr.conv_transpose3d)


class Windows:
    """Draws one program."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        shapes = MESHES.get(DEVICES, ((DEVICES,),))
        shape = shapes[number % len(shapes)]
        self.mesh = jax.make_mesh(shape, ("a", "b", "c")[: len(shape)])
        self.values = np.random.default_rng(number)
        self.inputs: dict[str, Any] = {}
        self.shard: dict[Any, Any] = {}
        self.sources: list[pr.Tensor] = []
        self.b, self.B = pr.dim("b")
        self.i, self.I = pr.dim("i")

    def spread(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Which axes of an array are spread over which axes of the mesh, where they divide."""
        for _ in range(50):
            spec: list[tuple[str, ...]] = [()] * len(shape)
            for axis in self.mesh.axis_names:
                at = self.random.randrange(len(shape) + 1)
                if at < len(shape):
                    spec[at] = (*spec[at], axis)
            if all(n % math.prod(self.mesh.shape[a] for a in axes) == 0 for n, axes in zip(shape, spec, strict=True)):
                return tuple(spec)
        return ()

    def given(self, *shape: int, spread: bool = True) -> Any:
        """An input, spread somehow."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self._numbers(*shape)
        if spread:
            self.shard[name] = self.spread(shape)
        self.sources.append(pr.input(name, shape))
        return self.sources[-1]

    def _numbers(self, *shape: int) -> Any:
        """Sums of products of these are exact, so that of equal values in a pool the same one is the first."""
        return (self.values.integers(-4, 5, shape) / 4).astype("float32")

    def made(self, *shape: int) -> Any:
        """A value of some shape, made of an input in one of the ways that programs do it."""
        way = self.random.choice(("given", "reshaped", "cut", "transposed", "broadcast", "summed", "joined", "alike"))
        first, rest = shape[0], shape[1:]
        if way == "reshaped":
            at = self.random.randrange(len(shape))
            return self.given(*shape[:at], math.prod(shape[at:])).reshape(shape)
        if way == "cut":
            more = [n + self.random.choice((0, 0, 1, n)) for n in shape]
            return self.given(*more).axes[tuple(slice(m - n, m) for m, n in zip(more, shape, strict=True))]
        if way == "transposed":
            order = self.random.sample(range(len(shape)), len(shape))
            back = [order.index(n) for n in range(len(shape))]
            return pr.transpose(self.given(*(shape[n] for n in order)), back)
        if way == "broadcast":
            small = [self.random.choice((1, n)) for n in shape]
            return pr.broadcast_to(self.given(*small), shape)
        if way == "summed":
            return self.given(self.random.choice((2, 4)), *shape).mean(0)
        if way == "joined" and first % 2 == 0:
            return pr.concat([self.given(first // 2, *rest), self.given(first // 2, *rest)], 0)
        return 0.5 * pr.relu(self.given(*shape)) if way == "alike" else self.given(*shape)

    def convolved(self, image: Any, channels: int, rank: int) -> Any:
        """A convolution of some kind; the channels of its result are four."""
        groups = self.random.choice((1, 1, 1, 2)) if channels % 2 == 0 else 1
        window = [self.random.choice((1, 2, 3, 4)[: 5 - rank]) for _ in range(rank)]
        stride, padding = self.random.choice((1, 1, 2)), self.random.choice((0, 1))
        if self.random.random() < 0.25:
            weights = self.made(channels, 4 // groups, *window)
            padding = min([padding, *(n - 1 for n in window)])
            return TRANSPOSED[rank - 1](image, weights, stride=stride, padding=padding, groups=groups)
        weights = self.made(4, channels // groups, *window)
        dilation = self.random.choice((1, 1, 2)) if max(window) < 4 else 1
        how: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return CONVOLUTIONS[rank - 1](image, weights, **how)

    def pooled(self, image: Any, rank: int) -> Any:
        """A pool over the last axes."""
        stride, padding = self.random.choice((1, 2)), self.random.choice((0, 1))
        if self.random.random() < 0.5:
            return pr.max_pool(image, (self.random.choice((2, 3)),) * rank, stride, padding)
        return pr.avg_pool(image, (2,) * rank, stride, padding)

    def result(self) -> Any:
        """A convolution or a pool, and perhaps another one behind it."""
        rank = self.random.choice((1, 2, 2, 2, 3))
        rows = [self.random.choice(((8, 16), (6, 8), (4, 6))[rank - 1]) for _ in range(rank)]
        channels, count = self.random.choice((1, 2, 4)), self.random.choice((1, 2, 4))
        if self.random.random() < 0.25:  # images along a dim
            self.inputs["image"] = self._numbers(count + 1, channels, *rows)
            image = pr.input("image", (channels, *rows), (self.b,))
            self.sources.append(image)
            self.shard[self.b] = self.random.choice(self.mesh.axis_names)
        else:
            image = self.made(count, channels, *rows)
        y = self.pooled(image, rank) if self.random.random() < 0.3 else None
        y = self.convolved(image if y is None else y - 0.5, channels, rank)
        if self.random.random() < 0.3:
            y = self.pooled(y, rank)
        elif self.random.random() < 0.3:
            y = self.convolved(pr.relu(y), 4, rank)
        return y

    def outputs(self) -> dict[str, Any]:
        y = self.result()
        loss = (y * pr.tanh(y)).sum()
        if self.b in loss.dims:
            loss = loss[{self.b: slice(0, self.B)}].sum()
        slopes = pr.grad(loss, self.sources)
        return {"y": y, **{f"slope{n}": slope for n, slope in enumerate(slopes)}}


def check(number: int) -> bool:
    """Compare one program with the oracle; whether there was one: windows may be larger than the image."""
    maker = Windows(number)
    try:
        outputs = maker.outputs()
        expected = pr.evaluate(outputs, maker.inputs)
    except pr.errors.PolyrhythmError:
        return False
    if expected["y"].size == 0:
        return False
    found = pr.compile(outputs, mesh=maker.mesh, shard=maker.shard)(**maker.inputs)
    for name, value in expected.items():
        told = f"{number} {name} {dict(maker.mesh.shape)} {maker.shard}"
        np.testing.assert_allclose(np.asarray(found[name]), value, rtol=2e-4, atol=2e-4, err_msg=told)
    return True


def case_a_few_windows() -> int:
    return sum(map(check, range(FEW)))


def case_windows() -> int:
    count = sum(map(check, range(MANY)))
    assert count > 0.7 * MANY, count
    return count


def main(first: int, last: int) -> None:
    """Programs by number."""
    counts = {"ran": 0, "not a program": 0, "failed": 0}
    for number in range(first, last):
        try:
            counts["ran" if check(number) else "not a program"] += 1
        except Exception:
            counts["failed"] += 1
            print(f"program {number}:\n{traceback.format_exc(limit=-1)[:900]}", flush=True)
    print(counts)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
