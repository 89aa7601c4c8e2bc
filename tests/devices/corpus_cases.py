"""Every hand-written program with each of its dims spread over all devices: its answer, or a named refusal."""

from collections import Counter
from typing import Any

import jax
import numpy as np

import polyrhythm as pr
from tests.devices.random_cases import REFUSALS
from tests.programs import PROGRAMS
from tests.programs.case import Case

DEVICES = jax.device_count()


def _bounds(case: Case) -> list[Any]:
    """The least, one in the middle and the most steps."""
    found = sorted(case.bounds, key=lambda bounds: sum(bounds.values()))
    return [found[n] for n in sorted({0, len(found) // 2, len(found) - 1})]


def _checked(case: Case) -> Counter[str]:
    mesh, counts = jax.make_mesh((DEVICES,), ("data",)), Counter[str]()
    built = case.built
    plain = pr.compile(built.outputs, until=built.until, backend="numpy")
    dims = {s.name for node in plain.compiled.graph for s in node.symbols if s.kind == "dim"}
    tensors = _dims(built.outputs.values())
    for name in sorted(dims & tensors.keys()):
        try:
            program = pr.compile(built.outputs, until=built.until, mesh=mesh, shard={tensors[name]: "data"})
        except (*REFUSALS, pr.errors.DeclarationError) as refusal:
            counts[type(refusal).__name__] += 1
            continue
        counts["spread"] += 1
        for bounds in _bounds(case):
            inputs = case.inputs(bounds)
            found = program(**inputs, bounds=case.call_bounds(bounds))
            arrays = {key: v if isinstance(v, pr.Ragged) else np.asarray(v) for key, v in found.items()}
            case.check(arrays, inputs, bounds)
    return counts


def _dims(outputs: Any) -> dict[str, Any]:
    """The dims that outputs have, by name."""
    return {dim.name: dim for tensor in outputs for dim in tensor.dims}


def case_every_program() -> dict[str, int]:
    counts, failed = Counter[str](), []
    for case in PROGRAMS:
        if case.built.log is not None:
            continue
        try:
            counts += _checked(case)
        except Exception as error:
            failed.append(f"{case.name}: {type(error).__name__}: {str(error)[:500]}")
    assert not failed, "\n".join(failed)
    assert counts["spread"] >= 10, counts
    return dict(counts)
