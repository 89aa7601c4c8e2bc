"""Weights to files and back."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import nn
from polyrhythm.nn.files import load, save


def test_a_module_comes_back_from_a_file(tmp_path: Path) -> None:
    module = nn.Block(8, hidden=12, heads=2, rng=np.random.default_rng(0))
    save(module.weights(), tmp_path / "block.safetensors")
    again = nn.Block(8, hidden=12, heads=2).using(load(tmp_path / "block.safetensors"))
    t, _ = pr.dim("t")
    x = pr.input("x", (8,), (t,))
    given = {"x": np.random.default_rng(1).normal(size=(3, 8))}
    np.testing.assert_array_equal(pr.evaluate(module(x, t), given), pr.evaluate(again(x, t), given))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int8", "bool", "bfloat16"])
def test_every_dtype_and_shape(dtype: str, tmp_path: Path) -> None:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    arrays = {
        "a": np.arange(6).reshape(2, 3).astype(kind).T,
        "scalar": np.ones((), kind),
        "none": np.zeros((0, 2), kind),
    }
    save(arrays, tmp_path / "x.safetensors", {"made by": "a test"})
    for name, array in load(tmp_path / "x.safetensors").items():
        assert (array.dtype, array.shape) == (kind, arrays[name].shape)
        np.testing.assert_array_equal(array, arrays[name])


def test_the_format(tmp_path: Path) -> None:
    save({"w": np.array([1.0, 2.0], np.float32)}, tmp_path / "w.safetensors")
    content = (tmp_path / "w.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + length]) == {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    assert np.frombuffer(content[8 + length :], np.float32).tolist() == [1.0, 2.0]
    assert (8 + length) % 8 == 0


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save({"w": np.ones(2)}, path)
    with pytest.raises(KeyError):
        save({"w": np.ones(2, complex)}, path)
    assert load(path)["w"].tolist() == [1.0, 1.0]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
