"""LoRA adapters of PEFT's format, and the probabilities of given text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from polyrhythm import llm
from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.errors import ModelMismatchError, ModelMissingError, PromptError

ADAPTED = [f"model.layers.{layer}.{part}" for layer in (0, 1) for part in ("self_attn.q_proj", "mlp.down_proj")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return llm.write_random(tmp_path / "model")


def write_adapter(folder: Path, model: Path, config: dict[str, Any] | None = None, **extra: np.ndarray) -> Path:
    """An adapter of rank 4 for some weights."""
    folder.mkdir()
    weights, rng = load_file(model / "model.safetensors"), np.random.default_rng(0)
    matrices: dict[str, np.ndarray] = dict(extra)
    for name in ADAPTED:
        outputs, inputs = weights[f"{name}.weight"].shape
        matrices[f"base_model.model.{name}.lora_A.weight"] = rng.normal(size=(4, inputs)).astype("float32")
        matrices[f"base_model.model.{name}.lora_B.weight"] = rng.normal(size=(outputs, 4)).astype("float32")
    save_file(matrices, folder / "adapter_model.safetensors")
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", **(config or {})}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    return folder


@pytest.mark.parametrize(("config", "scale"), [({}, 6 / 4), ({"use_rslora": True}, 6 / 2)])
def test_an_adapter_is_merged(folder: Path, tmp_path: Path, config: dict[str, Any], scale: float) -> None:
    adapter = write_adapter(tmp_path / "adapter", folder, config)
    model, plain = llm.load(folder, adapter=adapter, backend="numpy"), llm.load(folder, backend="numpy")
    matrices = load_file(adapter / "adapter_model.safetensors")
    for name, weight in plain.weights.items():
        expected = np.array(weight)
        for layer in range(2):
            for adapted in ADAPTED:
                if adapted.replace(f"layers.{layer}.", "layers.") + ".weight" == name:
                    down, up = (matrices[f"base_model.model.{adapted}.lora_{one}.weight"] for one in "AB")
                    expected[layer] += scale * up @ down
        np.testing.assert_allclose(model.weights[name], expected, rtol=1e-5, atol=1e-5)
    half = llm.load(folder, "bfloat16", adapter=adapter, backend="numpy")
    assert half.weights["model.norm.weight"].dtype.name == "bfloat16"


@pytest.mark.parametrize(
    ("config", "extra", "error", "message"),
    [
        ({"peft_type": "IA3"}, {}, UnsupportedError, "peft_type = 'IA3'"),
        ({"use_dora": True}, {}, UnsupportedError, "use_dora = True"),
        ({"bias": "all"}, {}, UnsupportedError, "bias = 'all'"),
        ({"modules_to_save": ["lm_head"]}, {}, UnsupportedError, "modules_to_save"),
        ({"r": 0}, {}, ModelMismatchError, "r = 0"),
        ({}, {"base_model.model.x.lora_A.weight": np.zeros((4, 3), "float32")}, ModelMismatchError, "one matrix only"),
        ({}, {"other.weight": np.zeros((4, 3), "float32")}, UnsupportedError, "no matrix of LoRA"),
        (
            {},
            {f"base_model.model.x.lora_{one}.weight": np.zeros((4, 4), "float32") for one in "AB"},
            ModelMismatchError,
            "no such weight",
        ),
    ],
)
def test_adapters_that_do_not_belong(
    folder: Path, tmp_path: Path, config: Any, extra: Any, error: Any, message: str
) -> None:
    adapter = write_adapter(tmp_path / "adapter", folder, config, **extra)
    with pytest.raises(error, match=message):
        llm.load(folder, adapter=adapter)


def test_no_adapter(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match=r"no adapter_model.safetensors"):
        llm.load(folder, adapter=tmp_path)


def test_the_probabilities_of_a_text(folder: Path) -> None:
    model = llm.load(folder, backend="numpy")
    text = [5, 9, 200, 31, 7, 7, 8]
    expected = torch.log_softmax(torch.from_numpy(model.logits(text)), -1).numpy()
    found = model.score(text)
    np.testing.assert_allclose(found[1:], [expected[n, token] for n, token in enumerate(text[1:])], atol=1e-4)
    assert found[0] == 0
    assert model.perplexity(text) == pytest.approx(np.exp(-found[1:].mean()), rel=1e-5)
    with pytest.raises(PromptError, match="one token"):
        model.perplexity([5])
