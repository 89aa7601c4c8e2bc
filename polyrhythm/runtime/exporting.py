"""Programs as folders: `program.export` for any machine with JAX and NumPy, `program.save` for this one.

What is written is what a call traces, at some capacities: an XLA program with the bounds as run-time scalars, so that
it runs for any lengths up to those. Parameters are arguments, and their values a file of their own. `exported.py` is
the other side: it is copied into the folder, with `small_loops.py`, and knows nothing of this package. Buffers of an
exported program do not grow: they have the exported capacity from the first step on.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.compiler.ir.terms import Symbol, Term
from polyrhythm.compiler.loops.python import condition_source, term_source
from polyrhythm.errors import MissingBoundError, UnsupportedError

if TYPE_CHECKING:
    from polyrhythm.runtime.exported import Exported
    from polyrhythm.runtime.program import Program

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def write(
    program: Program,
    path: str | Path,
    bounds: Mapping[Any, int | Sequence[int]],
    platforms: Sequence[str] | None,
) -> Path:
    """Write a program to a folder: modules for some platforms, or executables for this machine."""
    from polyrhythm.compiler.backends.jax.run import small_loops

    _check(program, platforms)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.stablehlo"), *folder.glob("*.executable")):
        old.unlink()
    buckets = [_bucket(program, folder, now, platforms) for now in _sizes(program, bounds)]
    weights = {name: np.asarray(value) for name, value in program.params.items()}
    if weights:
        # NumPy's files know no bfloat16: the bytes do, and the dtype is written beside them.
        stored: dict[str, Any] = {f"w.{n}": _as_bytes(np.ascontiguousarray(v)) for n, v in weights.items()}
        np.savez(folder / "weights.npz", **stored)
    (folder / "program.json").write_text(json.dumps(_about(program, buckets), indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("exported.py"), folder / "run.py")
    shutil.copyfile(small_loops.__file__, folder / "small_loops.py")
    return folder


def load(path: str | Path) -> Exported:
    """The program that was saved or exported to a folder; one that was saved here is neither traced nor compiled.

    >>> import polyrhythm as pr, tempfile
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> program = pr.compile({"sum": x[0:T].sum(0)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     program.save(folder, bounds={T: 8})
    ...     pr.load(folder)(x=[1.0, 2.0, 3.0])
    {'sum': array(6., dtype=float32)}
    """
    from polyrhythm.runtime.exported import Exported

    return Exported(path)


def _check(program: Program, platforms: Sequence[str] | None) -> None:
    if program.options.backend != "jax":
        raise UnsupportedError(
            f"a program of the {program.options.backend} backend cannot be exported",
            fix='compile it with backend="jax"',
        )
    if program.backend.host:
        raise UnsupportedError(
            "a program with host functions cannot be exported: they are functions of this process",
            fix="keep host functions out of it, and call them around it",
        )
    if program.options.mesh is not None:
        raise UnsupportedError("a program on a mesh cannot be exported", fix="export it compiled without mesh=")
    for platform in platforms or ():
        if platform not in PLATFORMS:
            raise UnsupportedError(f"there is no platform {platform!r}", fix=f"use some of {', '.join(PLATFORMS)}")


def _sizes(program: Program, bounds: Mapping[Any, int | Sequence[int]]) -> list[dict[str, int]]:
    """Every combination of the largest bounds that were asked for."""
    given = {str(key): [value] if isinstance(value, int) else list(value) for key, value in bounds.items()}
    names = [symbol.name for symbol in program.backend.sizing]
    for name in names:
        if name not in given:
            raise MissingBoundError(
                f"the bound {name} sizes arrays of the program, and its largest value was not given",
                fix=f"give it: bounds={{{name}: 1024}}, or several: {{{name}: [64, 1024]}}",
            )
    return [dict(zip(names, combination, strict=True)) for combination in product(*(given[name] for name in names))]


def _bucket(program: Program, folder: Path, sizes: dict[str, int], platforms: Sequence[str] | None) -> dict[str, Any]:
    """Write the program at the capacities of some bounds; what is to be known of it."""
    backend = program.backend
    capacities = backend.capacities(sizes)
    name = "_".join(["program", *(f"{symbol.name}{n}" for symbol, n in capacities.items())])
    shapes = backend.input_shapes(capacities)
    module = backend.exported(capacities, platforms or [_platform()])
    (folder / f"{name}.stablehlo").write_bytes(module.mlir_module_serialized)
    if platforms is None:
        from polyrhythm.runtime.exported import machine

        executable, ours = backend.executable(capacities)
        with (folder / f"{name}.executable").open("wb") as file:
            pickle.dump(machine(), file)
            pickle.dump(ours, file)
            pickle.dump(executable, file)
    return {
        "name": name,
        "capacities": {s.name: n for s, n in capacities.items()},
        "shapes": shapes,
        "platforms": module.platforms,
        "version": module.calling_convention_version,
        "kept": module.module_kept_var_idx,
        "made": [[array.shape, str(array.dtype)] for array in module.out_avals],
    }


def _platform() -> str:
    import jax

    found: str = jax.default_backend()
    return "cuda" if found == "gpu" else found


def _about(program: Program, buckets: list[dict[str, Any]]) -> dict[str, Any]:
    loops, graph, backend = program.compiled.loops, program.compiled.graph, program.backend
    count = len(loops.outputs)
    return {
        "inputs": {
            name: {
                "dtype": str(node.dtype),
                "axes": [_axis(length) for length in (*(dim.extent for dim in node.dims), *node.shape)],
            }
            for name, node in graph.inputs.items()
        },
        "places": {
            place: {"input": name, "picked": None if at is None else [None if isinstance(i, slice) else i for i in at]}
            for place, (name, at) in backend.inputs.items()
        },
        "bounds": [symbol.name for symbol in loops.bounds],
        "found": [symbol.name for symbol in loops.found],
        "requirements": [[condition_source(r.condition, _name), r.why] for r in graph.requirements],
        "buckets": buckets,
        "outputs": [[term_source(n, _name) for n in loops.places[name].whole] for name in loops.outputs],
        "structure": _structure(program.wanted.rebuild(list(range(count)))),
        "wide": backend.wide,
    }


def _axis(length: Term) -> tuple[str, str | None, int, int]:
    """The length of an axis as an expression, and how a bound follows from it: by its factor and what is added."""
    text = term_source(length, _name)
    if len(length.monomials) == 1:
        (monomial, factor) = length.monomials[0]
        if len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return text, monomial[0].name, factor, length.constant
    return text, None, 1, 0


def _name(symbol: Symbol) -> str:
    return symbol.name


def _structure(outputs: Any) -> Any:
    """Numbers of outputs in their structure, as JSON has it."""
    if isinstance(outputs, dict):
        return ["dict", [[key, _structure(part)] for key, part in outputs.items()]]
    if isinstance(outputs, (tuple, list)):
        return ["tuple" if isinstance(outputs, tuple) else "list", [_structure(part) for part in outputs]]
    return outputs


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """An array with elements that NumPy's files have."""
    return array if array.dtype.kind in "biufc" else array.view(f"u{array.dtype.itemsize}")
