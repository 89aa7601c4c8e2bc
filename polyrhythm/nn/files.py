"""Weights in safetensors files: a length, a JSON header with the place of each array, and the bytes of the arrays.

The format is that of https://github.com/huggingface/safetensors. Files are mapped into memory, so that loading
costs nothing until an array is read; they are written beside their place and then moved there, so that a file is
always whole.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("float64"),
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("int64"),
    "I32": np.dtype("int32"),
    "I16": np.dtype("int16"),
    "I8": np.dtype("int8"),
    "U8": np.dtype("uint8"),
    "BOOL": np.dtype("bool"),
}
"""The names of the dtypes in the header."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def save(weights: Mapping[str, Any], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write arrays by name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save({"weight": np.arange(3.0)}, folder + "/w.safetensors")
    ...     load(folder + "/w.safetensors")["weight"].tolist()
    [0.0, 1.0, 2.0]
    """
    arrays = {name: np.ascontiguousarray(weights[name]).reshape(np.shape(weights[name])) for name in sorted(weights)}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, array in arrays.items():
        place = [end, end + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": place}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the arrays begin at a multiple of eight
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays.values():
                file.write(array.tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of a file by name, read when they are used."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    found: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if start == end:
            found[name] = np.zeros(shape, dtype)
        else:
            found[name] = np.memmap(path, dtype, "r", 8 + length + start, shape)
    return found
