"""A program as part of a function that JAX is tracing: every bound is known from the shapes, so all is static."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from polyrhythm.compiler.backends.jax.backend import JaxBackend
from polyrhythm.compiler.backends.jax.ops.creation import seed_words
from polyrhythm.compiler.backends.jax.ops.padded import fit
from polyrhythm.compiler.backends.jax.run.placing import precision
from polyrhythm.compiler.backends.jax.trace.lowering import Lowering
from polyrhythm.compiler.loops.ir import blocks_of, output_shapes
from polyrhythm.errors import UnsupportedError


def inline(backend: JaxBackend, inputs: Mapping[str, Any], bounds: Mapping[str, int], seed: int) -> list[jax.Array]:
    """The outputs as traced arrays."""
    program = backend.program
    if program.found:
        raise UnsupportedError(
            f"a program that ends {program.found[0]} early cannot be part of a function that JAX traces: "
            "the shapes of its outputs are not known",
            fix="call it outside of jax.jit, or compile it without until",
        )
    if any(block.host for block in blocks_of(program.body)):
        raise UnsupportedError(
            "a program with host functions cannot be part of a function that JAX traces",
            fix="call it outside of jax.jit",
        )
    if backend.wide and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise UnsupportedError(
            "the program has 64-bit values, which JAX has not enabled in the function that it traces",
            fix='call jax.config.update("jax_enable_x64", True) first',
        )
    symbols = {symbol: bounds[symbol.name] for symbol in program.bounds}
    sizes = {symbol: bounds[symbol.name] for symbol in backend.sizing}
    with precision(backend.wide):
        whole = {name: jax.numpy.asarray(value) for name, value in inputs.items()}
        arrays = {n: whole[given] if at is None else whole[given][at] for n, (given, at) in backend.inputs.items()}
        # On a mesh dims that are spread are longer, so that every device has as much.
        rooms, shapes = backend.input_shapes(sizes), output_shapes(program, bounds)
        arrays = {name: fit(array, rooms[name]) for name, array in arrays.items()}

        def trace(arrays: Mapping[str, Any]) -> list[jax.Array]:
            made = Lowering(program, sizes, dict(symbols), seed_words(seed)).run(arrays)[0]
            return [fit(array, shape) for array, shape in zip(made, shapes, strict=True)]

        backend.executor.check_inlined(trace, (arrays,), symbols)
        return trace(arrays)
