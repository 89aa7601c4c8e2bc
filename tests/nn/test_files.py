"""Weights to files and back, and files that torch writes."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch

import polyrhythm as pr
from polyrhythm import nn
from polyrhythm.errors import DTypeError
from polyrhythm.nn.errors import WeightsFileError, WeightsMismatchError

KINDS = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint32", "bool"]


def kind(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def test_a_module_comes_back_from_a_file(tmp_path: Path) -> None:
    module = nn.Block(8, hidden=12, heads=2, rng=np.random.default_rng(0))
    module.save(tmp_path / "block.safetensors")
    again = nn.Block(8, hidden=12, heads=2).load(tmp_path / "block.safetensors")
    t, _ = pr.dim("t")
    x = pr.input("x", (8,), (t,))
    given = {"x": np.random.default_rng(1).normal(size=(3, 8))}
    np.testing.assert_array_equal(pr.evaluate(module(x, t), given), pr.evaluate(again(x, t), given))


@pytest.mark.parametrize("name", KINDS)
def test_every_dtype_and_shape(name: str, tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6).reshape(2, 3).astype(kind(name)).T,
        "scalar": np.ones((), kind(name)),
        "none": np.zeros((0, 2), kind(name)),
    }
    nn.save(arrays, tmp_path / "x.safetensors", {"made by": "a test"})
    found = nn.load(tmp_path / "x.safetensors")
    assert found.keys() == arrays.keys()
    for key, array in found.items():
        assert (array.dtype, array.shape) == (kind(name), arrays[key].shape)
        np.testing.assert_array_equal(array, arrays[key])
    there = safetensors.torch.load_file(tmp_path / "x.safetensors")
    for key, tensor in there.items():
        assert tuple(tensor.shape) == arrays[key].shape
        np.testing.assert_array_equal(tensor.double().numpy(), arrays[key].astype(np.float64))


def test_files_of_torch(tmp_path: Path) -> None:
    """Arrays of odd lengths and several dtypes, so that they begin at any byte."""
    tensors = {
        "flags": torch.tensor([True, False, True]),
        "z.half": torch.randn(3, dtype=torch.bfloat16),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "a.weight": torch.randn(3, 2),
        "wide": torch.randn(1, dtype=torch.float64),
        "count": torch.tensor(7),
    }
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", {"format": "pt"})
    found = nn.load(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].shape == tuple(tensor.shape)
        np.testing.assert_array_equal(found[name].astype(np.float64), tensor.double().numpy())


def test_a_module_of_torch(tmp_path: Path) -> None:
    there = torch.nn.LSTM(3, 2, num_layers=2, bidirectional=True)
    safetensors.torch.save_file(dict(there.state_dict()), tmp_path / "lstm.safetensors")
    module = nn.LSTM(3, 2, layers=2, bidirectional=True).load(tmp_path / "lstm.safetensors")
    t, _ = pr.dim("t")
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    found = pr.evaluate(module(pr.input("x", (3,), (t,)), t)[0], {"x": x})
    np.testing.assert_allclose(found, there(torch.tensor(x))[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    module.save(tmp_path / "back.safetensors")
    there.load_state_dict(safetensors.torch.load_file(tmp_path / "back.safetensors"), strict=True)


def test_buffers_are_saved(tmp_path: Path) -> None:
    there = torch.nn.BatchNorm1d(2)
    there(torch.randn(4, 2))
    safetensors.torch.save_file(dict(there.state_dict()), tmp_path / "norm.safetensors")
    module = nn.BatchNorm(2).load(tmp_path / "norm.safetensors")
    assert there.running_mean is not None
    np.testing.assert_array_equal(np.asarray(module.weights()["running_mean"]), there.running_mean.numpy())
    assert module.weights()["num_batches_tracked"] == 1


def test_several_files_with_an_index(tmp_path: Path) -> None:
    weights = {f"layers.{k}.weight": np.full((4, 4), k, np.float32) for k in range(5)}
    nn.save(weights, tmp_path / "model", most_bytes=128)
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert files == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    assert json.loads((tmp_path / "model" / files[3]).read_text())["metadata"] == {"total_size": 5 * 64}
    for path in (tmp_path / "model", tmp_path / "model" / files[3]):
        found = nn.load(path)
        assert found.keys() == weights.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, weights[name])
    # One file is changed for another that does not have what the index says.
    nn.save({"other": np.zeros(3)}, tmp_path / "model" / files[1])
    with pytest.raises(WeightsFileError, match=r"the index says that 'layers\.2\.weight' is in"):
        nn.load(tmp_path / "model")
    (tmp_path / "model" / files[1]).unlink()
    with pytest.raises(WeightsFileError, match=f"names {files[1]}, which is not there"):
        nn.load(tmp_path / "model")


def test_loading_reads_nothing(tmp_path: Path) -> None:
    nn.save({"w": np.ones(10)}, tmp_path / "w.safetensors")
    array = nn.load(tmp_path / "w.safetensors")["w"]
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    nn.save({"w": np.ones(10), "v": np.ones(3)}, path)
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:40], whole[:4], b"", whole + b"x", b"{" + whole[1:]):
        path.write_bytes(content)
        with pytest.raises(WeightsFileError, match="is not a whole safetensors file"):
            nn.load(path)
    with pytest.raises(WeightsFileError, match="there is no file"):
        nn.load(tmp_path / "nothing.safetensors")
    with pytest.raises(WeightsFileError, match="there are no weights in"):
        nn.load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weights": {}}')
    with pytest.raises(WeightsFileError, match="is not an index"):
        nn.load(tmp_path)


def test_a_dtype_without_counterpart(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(2).to(torch.float8_e4m3fn)}, tmp_path / "w.safetensors")
    with pytest.raises(WeightsFileError, match=r"'w' in .* has elements of F8_E4M3"):
        nn.load(tmp_path / "w.safetensors")


def test_weights_of_another_module(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    nn.Linear(2, 3).save(path)
    with pytest.raises(WeightsMismatchError, match="missing none; unknown bias"):
        nn.Linear(2, 3, bias=False).load(path)
    with pytest.raises(WeightsMismatchError, match=r"'weight' in .* has shape \(3, 2\), but the module needs \(3, 4\)"):
        nn.Linear(4, 3).load(path)
    with pytest.raises(WeightsMismatchError, match=r"missing layers\.0\.bias, layers\.0\.weight"):
        nn.MLP([2, 3]).load(path)
    halves = {name: value.astype(np.float16) for name, value in nn.Linear(2, 3).weights().items()}
    nn.save({f"head.{name}": value for name, value in halves.items()} | {"other": np.ones(1)}, path)
    with pytest.raises(WeightsMismatchError, match="is float16, but the module has float32"):
        nn.Linear(2, 3).load(path, "head.")
    loaded = nn.Linear(2, 3).load(path, "head.", cast=True)
    for name, value in loaded.weights().items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, halves[name].astype(np.float32))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    nn.save({"w": np.ones(2)}, path)
    with pytest.raises(DTypeError, match="complex128"):
        nn.save({"w": np.ones(2, complex)}, path)
    with pytest.raises(TypeError):
        nn.save({"w": np.zeros(2)}, path, {"metadata": 3})  # type: ignore[dict-item]
    assert nn.load(path)["w"].tolist() == [1.0, 1.0]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
