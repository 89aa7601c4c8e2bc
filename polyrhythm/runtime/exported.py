"""Run a program that Polyrhythm has exported: this file is copied into the folder, and needs JAX and NumPy alone.

    from run import load
    program = load("folder")
    outputs = program(x=array, bounds={"T": 9}, seed=0)

`program.json` says what the inputs, bounds and outputs are; `weights.npz` has the stored values of parameters; each
`*.stablehlo` is the program at some capacities, for the platforms it was exported for; each `*.executable` is the same
compiled for the machine that saved it, and is used only by the same version of JAX on the same kind of device.
Loading one unpickles it: load folders that you trust.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export


class ExportedError(ValueError):
    """An exported program was called with something that it does not take."""


class Exported:
    """An exported program: call it with its inputs by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        about = json.loads((self.path / "program.json").read_text(encoding="utf-8"))
        self.inputs: dict[str, Any] = about["inputs"]
        self.places: dict[str, Any] = about["places"]
        self.bounds: list[str] = about["bounds"]
        self.found: list[str] = about["found"]
        self.requirements: list[list[str]] = about["requirements"]
        self.buckets: list[dict[str, Any]] = sorted(about["buckets"], key=lambda b: list(b["capacities"].values()))
        self.outputs: list[list[str]] = about["outputs"]
        self.structure: Any = about["structure"]
        self.wide: bool = about["wide"]
        self.params = self._weights()
        self._programs: dict[int, Any] = {}
        self.started_from = ""  # what the last program was made of: an executable, or a module

    def __call__(self, *, bounds: Mapping[Any, int] | None = None, seed: int = 0, **inputs: Any) -> Any:
        """Run the program; every array comes back as a NumPy array."""
        values = {**self.params, **inputs}
        for name in values:
            if name not in self.inputs:
                raise ExportedError(f"the program has no input {name!r}; its inputs are {', '.join(self.inputs)}")
        for name in self.inputs:
            if name not in values:
                raise ExportedError(f"the input {name!r} is missing")
        known = self._solved(values, {str(key): int(value) for key, value in (bounds or {}).items()})
        bucket = self._bucket(known)
        arrays = {place: self._placed(place, values, bucket) for place in self.places}
        numbers = np.array([known[name] for name in self.bounds], np.int32)
        words = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)
        with jax.enable_x64(self.wide):
            made, ended = self._program(bucket)(arrays, numbers, words)
        known |= {name: int(value) for name, value in zip(self.found, ended, strict=True)}
        return _rebuilt(self.structure, [self._cut(n, array, known) for n, array in enumerate(made)])

    def _weights(self) -> dict[str, np.ndarray]:
        path = self.path / "weights.npz"
        if not path.exists():
            return {}
        with np.load(path) as stored:
            weights = {key.removeprefix("w."): stored[key] for key in stored.files}
        return {name: array.view(jax.numpy.dtype(self.inputs[name]["dtype"])) for name, array in weights.items()}

    def _solved(self, values: Mapping[str, Any], known: dict[str, int]) -> dict[str, int]:
        """The bounds: those given, and those that are the length of an axis of an input."""
        for name, value in values.items():
            shape, axes = np.shape(value), self.inputs[name]["axes"]
            if len(shape) != len(axes):
                raise ExportedError(f"the input {name!r} has {len(shape)} axes instead of {len(axes)}")
            for length, (_, symbol, factor, rest) in zip(shape, axes, strict=True):
                if symbol is not None and symbol not in known and (length - rest) % factor == 0:
                    known[symbol] = (length - rest) // factor
        for name in self.bounds:
            if name not in known:
                raise ExportedError(f"the bound {name} is not the length of any input: give bounds={{{name!r}: ...}}")
        for name, value in values.items():
            expected = tuple(_worth(text, known) for text, *_ in self.inputs[name]["axes"])
            if np.shape(value) != expected:
                raise ExportedError(f"the input {name!r} has shape {np.shape(value)} instead of {expected}")
        for condition, why in self.requirements:
            if not _worth(condition, known):
                raise ExportedError(f"the bounds {known} are too small: {why}")
        return known

    def _bucket(self, known: Mapping[str, int]) -> int:
        for number, bucket in enumerate(self.buckets):
            if all(known[name] <= most for name, most in bucket["capacities"].items()):
                return number
        largest = self.buckets[-1]["capacities"]
        raise ExportedError(f"the bounds {dict(known)} are beyond the exported capacities {largest}")

    def _placed(self, place: str, values: Mapping[str, Any], bucket: int) -> Any:
        """What a place of the program holds: an input or a part of one, at capacity."""
        about, shape = self.places[place], tuple(self.buckets[bucket]["shapes"][place])
        name = about["input"]
        array = values[name]
        dtype = jax.numpy.dtype(self.inputs[name]["dtype"])
        if not isinstance(array, jax.Array) or array.dtype != dtype:
            array = np.asarray(array).astype(dtype, copy=False)
        if about["picked"] is not None:
            array = array[tuple(slice(None) if slot is None else slot for slot in about["picked"])]
        if array.shape == shape:
            return array
        room = np.zeros(shape, dtype)
        shared = tuple(slice(0, min(pair)) for pair in zip(array.shape, shape, strict=True))
        room[shared] = np.asarray(array)[shared]
        return room

    def _program(self, bucket: int) -> Any:
        if bucket not in self._programs:
            name = self.buckets[bucket]["name"]
            found = self._executable(name)
            self.started_from = "executable" if found is not None else "module"
            if found is None:
                now = self.buckets[bucket]
                found = _compiled(jax.jit(self._module(now).call).lower(*self._arguments(now)))
            self._programs[bucket] = found
        return self._programs[bucket]

    def _module(self, bucket: Mapping[str, Any]) -> Any:
        """The program in place of one that takes and makes the same arrays: JAX's own files need another package."""
        made = [jax.ShapeDtypeStruct(tuple(shape), jax.numpy.dtype(dtype)) for shape, dtype in bucket["made"]]
        count = len(self.outputs)

        def same(arrays: Any, numbers: Any, words: Any) -> Any:
            zeros = [jax.numpy.zeros(one.shape, one.dtype) for one in made]
            return zeros[:count], zeros[count:]

        stand_in = export.export(jax.jit(same), platforms=bucket["platforms"])(*self._arguments(bucket))
        return replace(
            stand_in,
            mlir_module_serialized=(self.path / f"{bucket['name']}.stablehlo").read_bytes(),
            calling_convention_version=bucket["version"],
            module_kept_var_idx=tuple(bucket["kept"]),
        )

    def _arguments(self, bucket: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """What a program takes: its inputs, the bounds, and the seed in two words."""
        taken = {n: jax.ShapeDtypeStruct(tuple(bucket["shapes"][n]), self._dtype(at)) for n, at in self.places.items()}
        return taken, jax.ShapeDtypeStruct((len(self.bounds),), np.int32), jax.ShapeDtypeStruct((2,), np.uint32)

    def _dtype(self, place: Mapping[str, Any]) -> Any:
        return jax.numpy.dtype(self.inputs[place["input"]]["dtype"])

    def _executable(self, name: str) -> Any:
        path = self.path / f"{name}.executable"
        if not path.exists():
            return None
        from jax.experimental import serialize_executable

        with path.open("rb") as file:
            if pickle.load(file) != machine() or (pickle.load(file) and not _has_kernel()):
                return None
            return serialize_executable.deserialize_and_load(*pickle.load(file))

    def _cut(self, number: int, array: Any, known: Mapping[str, int]) -> np.ndarray:
        shape = tuple(max(0, _worth(text, known)) for text in self.outputs[number])
        index: Any = (*map(slice, shape), ...)
        found: np.ndarray = np.asarray(array)[index]
        return found


def _compiled(lowered: Any) -> Any:
    """Compiled with the options that the program had, which a file beside this one knows."""
    beside = Path(__file__).with_name("small_loops.py")
    if not beside.exists():
        from polyrhythm.compiler.backends.jax.run import small_loops

        return small_loops.compile_lowered(lowered)
    name = "polyrhythm_small_loops"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, beside)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].compile_lowered(lowered)


def _has_kernel() -> bool:
    """Whether code of Polyrhythm's own, which a saved program may call, is to be had here."""
    try:
        from polyrhythm.compiler.backends.jax.products import kernel
    except ImportError:
        return False
    return kernel.missing() is None


def machine() -> dict[str, str]:
    """What a compiled executable depends on."""
    device: Any = jax.devices()[0]
    return {"jax": jax.__version__, "platform": device.platform, "device": device.device_kind, "of": _processor()}


def _processor() -> str:
    """The instructions that this machine has, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        import platform

        return f"{platform.machine()} {platform.processor()}"


def load(path: str | Path) -> Exported:
    """The program that was exported or saved to a folder."""
    return Exported(path)


def _worth(text: str, known: Mapping[str, int]) -> Any:
    """The value of a length or condition over bounds; the texts come from the compiler."""
    return eval(text, {"__builtins__": {}, "min": min, "max": max}, dict(known))


def _rebuilt(structure: Any, results: list[Any]) -> Any:
    """Results as the program's outputs were given."""
    if isinstance(structure, int):
        return results[structure]
    kind, parts = structure
    if kind == "dict":
        return {key: _rebuilt(part, results) for key, part in parts}
    made = [_rebuilt(part, results) for part in parts]
    return tuple(made) if kind == "tuple" else made
