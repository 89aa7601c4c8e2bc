"""Compiled programs: `pr.compile` and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.lang.calls import prepare
from polyrhythm.lang.index import Bound, Dim
from polyrhythm.lang.structure import flattened
from polyrhythm.lang.tensor import Tensor
from polyrhythm.loops.show import show
from polyrhythm.runtime.arrays import as_numpy, kind_of, like
from polyrhythm.runtime.memory import Memory
from polyrhythm.runtime.pipeline import Compiled, compile_tensors

BACKENDS = ("jax", "numpy", "torch")


def compile(
    outputs: Any,
    bounds: Mapping[Bound, int] | None = None,
    until: Mapping[Dim, Tensor] | None = None,
    effects: Sequence[Tensor] = (),
    backend: str = "jax",
) -> Program:
    """Compile some outputs into a program.

    `outputs` is a tensor, or a tuple, list or dict of them. `bounds` fixes bounds for good, which lets the compiler
    specialise; others may differ at every call. `until` ends a dim early. `effects` keeps host functions that are
    wanted only for what they do.

    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> total = pr.recurrent((), (t,))
    >>> total[0] = x[0]
    >>> total[t + 1] = total + x[t + 1]
    >>> program = pr.compile({"last": total[T - 1]}, backend="numpy")
    >>> program(x=[1.0, 2.0, 3.0])
    {'last': array(6., dtype=float32)}
    """
    tensors, rebuild = flattened(outputs)
    return Program(compile_tensors(tensors, effects, until, bounds), rebuild, backend)


class Program:
    """A compiled program: call it with its inputs by name."""

    def __init__(self, compiled: Compiled, rebuild: Callable[[list[Any]], Any], backend: str) -> None:
        self.compiled = compiled
        self._rebuild = rebuild
        self.backend_name = backend
        self.backend = make_backend(compiled, backend)
        self.params: dict[str, np.ndarray] = dict(compiled.graph.parameters)

    def __call__(self, *, bounds: Mapping[Any, int] | None = None, seed: int = 0, **inputs: Any) -> Any:
        """Run the program. Arrays come back as what came in: NumPy, JAX or torch."""
        kind = kind_of(inputs.values())
        given = {name: as_numpy(value) for name, value in {**self.params, **inputs}.items()}
        call = prepare(self.compiled.graph, given, bounds)
        by_name = {symbol.name: value for symbol, value in call.bounds.items()}
        results, _ = self.backend.run(call.inputs, by_name, seed)
        return self._rebuild([like(kind, result) for result in results])

    @property
    def schedule(self) -> str:
        """The loops of the program as pseudo-code."""
        return show(self.compiled.loops, details=False)

    @property
    def memory(self) -> Memory:
        """What the program keeps, where, and why; ask it for bytes at given bounds."""
        return Memory(self.compiled.loops)


def make_backend(compiled: Compiled, backend: str) -> Any:
    """The backend of a name. Array libraries are imported only when they are wanted."""
    if backend == "numpy":
        from polyrhythm.backends.numpy import NumpyBackend

        return NumpyBackend(compiled.loops)
    if backend == "jax":
        from polyrhythm.backends.jax.backend import JaxBackend

        return JaxBackend(compiled.loops)
    if backend == "torch":
        from polyrhythm.backends.torch.backend import TorchBackend

        return TorchBackend(compiled.loops)
    raise UnsupportedError(f"there is no backend {backend!r}", fix=f"use one of {', '.join(BACKENDS)}")
