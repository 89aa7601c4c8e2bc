"""The weights of a Hugging Face folder: one safetensors file, or several with an index.

The safetensors library checks the headers, and names and shapes are compared with what the model needs before any
weight is read. The weights of all layers under one name become one array, the layers along its first axis. Each is read
from its place in the file straight into that array, a block at a time where the dtype differs, so that loading holds
the weights once: pages of a mapped file would count as ours beside the array (`tests/llm/test_memory.py`).
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from polyrhythm.llm.errors import ModelDamagedError, ModelMismatchError, ModelMissingError
from polyrhythm.llm.quantised import Quantised
from polyrhythm.llm.read_config import read_json
from polyrhythm.nn.files import DTYPES

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

FLOATS = ("F64", "F32", "F16", "BF16")
"""The dtypes, as safetensors names them, that weights may have."""

BLOCK = 1 << 22
"""How many elements are converted at a time."""

UNUSED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|(attn|attention)\.(bias|masked_bias))$")
"""Tables that older files keep beside the weights, and that are computed here."""

Shape = tuple[int, ...]


class Weights(ABC):
    """Tensors by name; nothing is read until it is asked for."""

    where: Path

    @abstractmethod
    def names(self) -> list[str]:
        """The tensors that count, in order of their names."""

    def local(self, name: str) -> str:
        """What a weight of the model is called here."""
        return name

    def lacks(self, prefix: str) -> bool:
        """Whether no name begins so: older files leave out what all names begin with."""
        return not any(name.startswith(prefix) for name in self.names())

    @abstractmethod
    def shape(self, name: str) -> Shape:
        """The shape of a tensor."""

    @abstractmethod
    def check_kind(self, name: str) -> None:
        """Refuse a tensor whose elements cannot be weights."""

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """A tensor as an array."""

    def quantised(self, name: str) -> Quantised | None:
        """A tensor as it is quantised; None if it is not."""
        return None

    def check(self, needed: Mapping[str, Shape], optional: frozenset[str] = frozenset()) -> None:
        """Refuse tensors that are not those a model needs."""
        there, wanted = set(self.names()), {self.local(name): shape for name, shape in needed.items()}
        missing = sorted(wanted.keys() - there)
        unknown = sorted(there - wanted.keys() - {self.local(name) for name in optional})
        if missing or unknown:
            raise ModelMismatchError(
                f"the weights in {self.where} are not those of its configuration: "
                f"missing {_some(missing)}, unknown {_some(unknown)}",
                fix="take the config.json that belongs to the weights",
            )
        for name, shape in wanted.items():
            if self.shape(name) != shape:
                raise ModelMismatchError(
                    f"{name!r} in {self.where} has shape {self.shape(name)}, but its configuration makes it {shape}",
                    fix="take the config.json that belongs to the weights",
                )
            self.check_kind(name)

    def stacked(self, names: list[str], dtype: np.dtype) -> np.ndarray:
        """Tensors of one shape as one array, converted."""
        own = [self.local(name) for name in names]
        result = _aligned((len(own), *self.shape(own[0])), dtype)
        for number, name in enumerate(own):
            self.read_into(name, result[number])
            if has_nan(result[number]):
                raise ModelDamagedError(
                    f"{name!r} in {self.where} has elements that are not numbers (NaN)",
                    fix="copy the file again, or save the model from a step before its training failed",
                )
        return result

    def read_into(self, name: str, target: np.ndarray) -> None:
        """Read a tensor into an array of its shape, converted."""
        target[...] = self.read(name)


class Checkpoint(Weights):
    """The tensors of a folder."""

    def __init__(self, folder: Path) -> None:
        self.where = self.folder = folder
        self._files = {path: _opened(path) for path in _paths(folder)}
        self._where = {name: path for path, file in self._files.items() for name in file.keys()}  # noqa: SIM118
        self._headers: dict[Path, dict[str, tuple[np.dtype, int]]] = {}
        self._check_index()

    def _check_index(self) -> None:
        """Every tensor that the index promises is in the file where it is said to be."""
        index = read_json(self.folder / INDEX, needed=False) if SINGLE not in {p.name for p in self._files} else {}
        for name, file in index.get("weight_map", {}).items():
            if self._where.get(name) != self.folder / file:
                raise ModelMismatchError(
                    f"{self.folder / INDEX} says that {name!r} is in {file}, but it is not there",
                    fix="copy the folder again: the index and the files do not belong together",
                )

    def names(self) -> list[str]:
        return sorted(name for name in self._where if not UNUSED.search(name))

    def shape(self, name: str) -> Shape:
        return tuple(self._files[self._where[name]].get_slice(name).get_shape())

    def check_kind(self, name: str) -> None:
        kind = str(self._files[self._where[name]].get_slice(name).get_dtype())
        if kind not in FLOATS:
            raise ModelMismatchError(
                f"{name!r} in {self._where[name]} has elements of {kind}, but weights are floats",
                fix="take a checkpoint that is not quantised",
            )

    def read(self, name: str) -> np.ndarray:
        return np.asarray(self._files[self._where[name]].get_tensor(name))

    def read_into(self, name: str, target: np.ndarray) -> None:
        path = self._where[name]
        dtype, place = self._places(path)[name]
        flat = target.reshape(-1)
        with open(path, "rb", buffering=0) as file:
            file.seek(place)
            if dtype == target.dtype:
                _fill(file, flat)
                return
            block = np.empty(min(BLOCK, flat.size), dtype)
            for start in range(0, flat.size, BLOCK):
                part = block[: min(BLOCK, flat.size - start)]
                _fill(file, part)
                flat[start : start + part.size] = part

    def _places(self, path: Path) -> dict[str, tuple[np.dtype, int]]:
        """The dtype and the place of each tensor of a file, by its header, which the library has checked."""
        if path not in self._headers:
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            self._headers[path] = {
                name: (DTYPES[entry["dtype"]], 8 + size + entry["data_offsets"][0])
                for name, entry in header.items()
                if name != "__metadata__" and entry["dtype"] in DTYPES
            }
        return self._headers[path]


def has_nan(array: np.ndarray) -> bool:
    """Whether an array has a NaN, a block at a time: sums show it, and are read no slower than the file was."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        if block.dtype.itemsize == 2:
            most = np.uint16(0x7C00 if block.dtype == np.float16 else 0x7F80)
            if (block.view(np.uint16) & np.uint16(0x7FFF)).max(initial=0) > most:
                return True
        # Infinities of both signs make a NaN of a sum as well.
        elif np.isnan(block.sum()) and np.isnan(block).any():
            return True
    return False


def _aligned(shape: Shape, dtype: np.dtype) -> np.ndarray:
    """An array that begins at a multiple of 64 bytes: JAX takes such a one as it is, and copies any other."""
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(dtype).reshape(shape)


def _fill(file: Any, array: np.ndarray) -> None:
    """Read an array's bytes from where a file is."""
    left = memoryview(array.view(np.uint8))  # type: ignore[arg-type]
    while left:
        count = file.readinto(left)
        if not count:
            raise ModelDamagedError(f"{file.name} ends within a tensor", fix="copy the file again")
        left = left[count:]


def _paths(folder: Path) -> list[Path]:
    """The files with weights."""
    if not folder.is_dir():
        raise ModelMissingError(
            f"there is no folder {folder}", fix="give the folder of a Hugging Face checkpoint on this machine"
        )
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = read_json(folder / INDEX, needed=False)
    if not index:
        raise ModelMissingError(
            f"there are no weights in {folder}: neither {SINGLE} nor {INDEX}",
            fix="save the model with safe_serialization=True, which is the default of save_pretrained",
        )
    files = index.get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ModelDamagedError(f"{folder / INDEX} has no weight_map", fix="copy the file again")
    for name, file in files.items():
        if not isinstance(file, str):
            raise ModelDamagedError(
                f"{folder / INDEX} has {file!r} for {name!r} in weight_map, which is no name of a file",
                fix="copy the file again",
            )
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise ModelDamagedError(
                f"{folder / INDEX} names {file!r}, which is not inside its folder",
                fix="put the file beside the index, and name it there without a path",
            )
    paths = [folder / name for name in sorted(set(files.values()))]
    for path in paths:
        if not path.is_file():
            raise ModelMissingError(
                f"{folder / INDEX} names {path.name}, which is not there", fix="copy the missing file to the folder"
            )
    return paths


def _opened(path: Path) -> Any:
    """A file mapped into memory. The library checks that its header covers the file exactly."""
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise ModelDamagedError(
            f"{path} is not a whole safetensors file ({path.stat().st_size:,} bytes): {error}",
            fix="copy the file again; it was probably cut off",
        ) from None


def _some(names: list[str]) -> str:
    """A few of many names."""
    shown = ", ".join(names[:3])
    return (shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")) or "none"
