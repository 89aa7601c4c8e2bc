"""What XLA gets of a program and what it makes of it: text, costs, memory, collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from polyrhythm.errors import MissingBoundError, UnsupportedError
from polyrhythm.runtime import spilling

if TYPE_CHECKING:
    from polyrhythm.compiler.backends.jax.run.collectives import Collective
    from polyrhythm.compiler.backends.jax.run.executor import Account
    from polyrhythm.runtime.program import Program


@dataclass(frozen=True)
class Lowered:
    """A program at some capacities. `text` is StableHLO; what is asked of the compiled program compiles it first."""

    text: str
    lowered: Any
    devices: int = 1

    @cached_property
    def compiled(self) -> Any:
        """The program compiled by XLA for this machine."""
        from polyrhythm.compiler.backends.jax.run.small_loops import compile_lowered

        if self.lowered is None:
            raise UnsupportedError(
                "a program lowered for another platform cannot be compiled here", fix="leave out platform="
            )
        return compile_lowered(self.lowered)

    @property
    def cost(self) -> dict[str, float]:
        """What XLA counts: "flops", "bytes accessed" and more, on each device."""
        found = self.compiled.cost_analysis()
        return dict(found[0] if isinstance(found, list) else found)

    @property
    def memory(self) -> Account:
        """What XLA allocates on each device, in bytes."""
        from polyrhythm.compiler.backends.jax.run.executor import account_of

        return account_of(self.compiled)

    @property
    def collectives(self) -> list[Collective]:
        """What the devices of a mesh say to each other."""
        from polyrhythm.compiler.backends.jax.run.collectives import collectives

        return collectives(self.compiled.as_text(), self.devices)


def lowered(program: Program, bounds: Mapping[str, int], platform: str | None) -> Lowered:
    """The program at the capacities of some bounds."""
    options = program.options
    if options.backend != "jax" or program.backend.host:
        why = f"the {options.backend} backend" if options.backend != "jax" else "host functions"
        raise UnsupportedError(
            f"a program with {why} is no XLA program", fix='use backend="jax", and no host functions'
        )
    backend = spilling.planned(program, bounds).backend
    for symbol in backend.sizing:
        if symbol.name not in bounds:
            raise MissingBoundError(f"the bound {symbol} was not given", fix=f"pass bounds={{{symbol}: ...}}")
    capacities = backend.capacities(bounds)
    if platform is not None:
        return Lowered(backend.exported(capacities, [platform]).mlir_module(), None)
    found = backend.lowered(capacities)
    return Lowered(found.as_text(), found, 1 if options.mesh is None else options.mesh.size)
