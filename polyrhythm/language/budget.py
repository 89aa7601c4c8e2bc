"""What a run may take: bytes of memory, and where to put what does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.errors import DeclarationError

UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def parsed_bytes(budget: int | str) -> int:
    """A number of bytes, as a number or with a unit.

    >>> parsed_bytes("512MB"), parsed_bytes("1.5 KB"), parsed_bytes(100)
    (536870912, 1536, 100)
    """
    if isinstance(budget, int):
        return budget
    digits = budget.rstrip("KMGB ")
    unit = budget[len(digits) :].strip()
    try:
        return int(float(digits) * UNITS[unit or "B"])
    except (ValueError, KeyError):
        raise DeclarationError(
            f"{budget!r} is no number of bytes", fix='write it as in memory_budget="512MB", or as a number'
        ) from None


@dataclass(frozen=True)
class Budget:
    """A limit to the memory of a run; tensors that do not fit go, step by step, to files in the folder `spill`.

    Those files have no names and are gone with the program. What goes there is chosen at a call, when the bounds are
    known: the largest tensors first, as many as it takes. With `spill="pinned_host"` they go to memory of the host
    that the device can reach, where JAX's platform has it; a CPU, which has one memory, runs that and saves nothing.

    >>> import polyrhythm as pr, tempfile
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (1000,), (t,))
    >>> y = pr.recurrent((1000,), (t,))
    >>> y[0] = x[0]
    >>> y[t + 1] = pr.tanh(y + x[t + 1])
    >>> z = pr.recurrent((1000,), (t,))
    >>> z[T - 1] = y[T - 1]
    >>> z[t - 1] = 0.5 * z + y[t - 1]
    >>> limit = pr.Budget("600KB", spill=tempfile.gettempdir())
    >>> program = pr.compile(z[0], backend="numpy", memory_budget=limit)
    >>> program(x=[[0.0] * 1000] * 100).shape
    (1000,)
    >>> list(program.spilled)
    ['y']
    """

    memory: int | str
    spill: str | None = None

    @property
    def bytes(self) -> int:
        """The limit as a number of bytes."""
        return parsed_bytes(self.memory)

    @classmethod
    def of(cls, given: Budget | int | str | None) -> Budget | None:
        """What `pr.compile` was given."""
        return given if isinstance(given, Budget) or given is None else cls(given)
