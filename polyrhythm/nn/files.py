"""Weights in safetensors files, one or several with an index, as torch and Hugging Face write them.

The safetensors library reads and checks the headers: what is cut off or damaged is refused before any array is used.
The arrays are then mapped into memory from the places that the headers give them, so that loading costs nothing until
an array is read. Files are written beside their place and then moved there, so that a file is always whole.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from polyrhythm.errors import DTypeError
from polyrhythm.nn.errors import WeightsFileError

PathLike = str | os.PathLike[str]

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("float64"),
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("int64"),
    "I32": np.dtype("int32"),
    "I16": np.dtype("int16"),
    "I8": np.dtype("int8"),
    "U64": np.dtype("uint64"),
    "U32": np.dtype("uint32"),
    "U16": np.dtype("uint16"),
    "U8": np.dtype("uint8"),
    "BOOL": np.dtype("bool"),
}
"""The dtypes that arrays may have here, by the names that headers have for them."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What the files of a folder are called."""


def save(
    weights: Mapping[str, Any],
    path: PathLike,
    metadata: Mapping[str, str] | None = None,
    most_bytes: int | None = None,
) -> None:
    """Write arrays by name into a file; with `most_bytes` into a folder, as files of at most that size and an index.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save({"weight": np.arange(3.0)}, folder + "/w.safetensors")
    ...     load(folder + "/w.safetensors")["weight"].tolist()
    [0.0, 1.0, 2.0]
    """
    arrays = {name: _contiguous(name, weights[name]) for name in sorted(weights)}
    if most_bytes is None:
        _write(arrays, Path(path), metadata)
        return
    folder, parts = Path(path), _parts(arrays, most_bytes)
    folder.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        _write({name: arrays[name] for name in names}, folder / file, metadata)
        places |= dict.fromkeys(names, file)
    total = sum(array.nbytes for array in arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    # Last, so that an index never names a file that is not there yet.
    _replace(folder / INDEX, lambda place: Path(place).write_text(json.dumps(index, indent=2)))


def load(path: PathLike) -> dict[str, np.ndarray]:
    """The arrays of a file by name, of several files by their index, or of a folder with either.

    They are mapped into memory and cannot be written to.
    """
    found: dict[str, np.ndarray] = {}
    for file, promised in _files(Path(path)).items():
        arrays = _mapped(file)
        missing = sorted(promised - arrays.keys())
        if missing:
            raise WeightsFileError(
                f"the index says that {missing[0]!r} is in {file}, but it is not",
                fix="copy the folder again: the index and the files do not belong together",
            )
        found |= {name: array for name, array in arrays.items() if not promised or name in promised}
    return found


def _files(path: Path) -> dict[Path, set[str]]:
    """The files to read, with the names that an index promises in each."""
    if path.is_dir():
        if not (path / SINGLE).is_file() and not (path / INDEX).is_file():
            raise WeightsFileError(
                f"there are no weights in {path}: neither {SINGLE} nor {INDEX}",
                fix="name the file itself, or the folder that has one of these",
            )
        path = path / SINGLE if (path / SINGLE).is_file() else path / INDEX
    if not path.is_file():
        raise WeightsFileError(f"there is no file {path}", fix="check the path")
    if path.suffix != ".json":
        return {path: set()}
    try:
        places = json.loads(path.read_text())["weight_map"]
        files: dict[Path, set[str]] = {}
        for name, file in sorted(places.items()):
            check_inside(path, file)
            files.setdefault(path.parent / file, set()).add(name)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise WeightsFileError(
            f"{path} is not an index: it has no `weight_map` from names to files", fix="copy the file again"
        ) from None
    for file in files:
        if not file.is_file():
            raise WeightsFileError(f"{path} names {file.name}, which is not there", fix="copy that file too")
    return files


def check_inside(index: Path, file: str) -> None:
    """Refuse a file that an index names outside its own folder."""
    if Path(file).is_absolute() or ".." in Path(file).parts:
        raise WeightsFileError(
            f"{index} names {file!r}, which is not inside its folder",
            fix="put the file beside the index, and name it there without a path",
        )


def _mapped(path: Path) -> dict[str, np.ndarray]:
    """The arrays of one file. They lie one after the other behind the header: the library has checked that."""
    found: dict[str, np.ndarray] = {}
    try:
        with open(path, "rb") as raw, safe_open(path, framework="numpy") as file:
            place = 8 + int.from_bytes(raw.read(8), "little")
            for name in file.offset_keys():
                entry = file.get_slice(name)
                dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
                if dtype not in DTYPES:
                    raise WeightsFileError(
                        f"{name!r} in {path} has elements of {dtype}, which has no counterpart here",
                        fix=f"convert it to one of {', '.join(DTYPES)}",
                    )
                found[name] = _view(path, DTYPES[dtype], place, shape)
                place += found[name].nbytes
    except SafetensorError as error:
        raise WeightsFileError(
            f"{path} is not a whole safetensors file ({path.stat().st_size:,} bytes): {error}",
            fix="copy the file again; it was probably cut off",
        ) from None
    return found


def _view(path: Path, dtype: np.dtype, place: int, shape: tuple[int, ...]) -> np.ndarray:
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", place, shape)


def _contiguous(name: str, weight: Any) -> np.ndarray:
    array = np.asarray(weight)
    if array.dtype not in DTYPES.values():
        raise DTypeError(
            f"the weight {name!r} has elements of {array.dtype}, which safetensors files have no name for",
            fix=f"cast it to one of {', '.join(map(str, DTYPES.values()))}",
        )
    return np.ascontiguousarray(array).reshape(array.shape)


def _parts(arrays: Mapping[str, np.ndarray], most_bytes: int) -> list[list[str]]:
    """The names in groups of at most so many bytes; an array that is larger is a group by itself."""
    parts: list[list[str]] = [[]]
    room = most_bytes
    for name, array in arrays.items():
        if parts[-1] and array.nbytes > room:
            parts.append([])
            room = most_bytes
        parts[-1].append(name)
        room -= array.nbytes
    return parts


def _write(arrays: Mapping[str, np.ndarray], target: Path, metadata: Mapping[str, str] | None) -> None:
    _replace(target, lambda place: save_file(dict(arrays), place, dict(metadata) if metadata else None))


def _replace(target: Path, write: Any) -> None:
    """Write a file beside its place and move it there."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    os.close(handle)
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def names_of(names: Iterable[str]) -> str:
    """A few of many names, for messages.

    >>> names_of("abcde")
    'a, b, c and 2 more'
    """
    known = sorted(names)
    shown = ", ".join(known[:3])
    return (shown + (f" and {len(known) - 3} more" if len(known) > 3 else "")) or "none"
