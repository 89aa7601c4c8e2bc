"""Fine-tuning by low-rank adapters: equal to the same training in torch, on plain and on quantised weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from polyrhythm import llm
from polyrhythm.errors import DeclarationError
from polyrhythm.llm.errors import PromptError
from tests.llm.gguf_files import smollm2, write_gguf


class TorchLoRA(torch.nn.Module):
    """A linear layer and two small matrices, as PEFT has them."""

    def __init__(self, layer: torch.nn.Linear, down: np.ndarray, up: np.ndarray, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale
        self.down, self.up = (torch.nn.Parameter(torch.tensor(matrix)) for matrix in (down, up))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + (x @ self.down.T @ self.up.T) * self.scale


def by_torch(reference: Any, start: llm.Adapter, text: np.ndarray, rate: float) -> np.ndarray:
    """The losses of the same training, from the matrices that an adapter has."""
    reference.requires_grad_(False)
    layers = reference.model.layers
    for name, (down, up) in start.matrices.items():
        part = name.split(".")[-2]
        for number, layer in enumerate(layers):
            own = TorchLoRA(getattr(layer.self_attn, part), down[number], up[number], start.alpha / start.rank)
            setattr(layer.self_attn, part, own)
    trained = [p for p in reference.parameters() if p.requires_grad]
    optimiser, losses = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0), []
    for batch in text:
        tokens = torch.tensor(batch).long()
        loss = reference(tokens, labels=tokens).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return np.array(losses)


def test_training_equals_torch(tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path / "model", num_hidden_layers=2, eos_token_id=None)
    model, plain = llm.load(folder), llm.load(folder, backend="numpy")  # compiling less for what is only compared with
    text = np.random.default_rng(0).integers(0, 260, (1, 3, 12)).repeat(8, 0)
    options: dict[str, Any] = {"rank": 4, "targets": ("q_proj", "k_proj", "v_proj", "o_proj")}
    start = llm.fine_tune(plain, text[:1], learning_rate=0.0, **options)
    adapter = llm.fine_tune(model, text, learning_rate=1e-2, **options)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    np.testing.assert_allclose(adapter.losses, by_torch(reference, start, text, 1e-2), rtol=1e-4)
    assert adapter.losses[-1] < 0.9 * adapter.losses[0]
    assert len(adapter.program.stats.compilations) == 1
    # What was learnt can be written, and read with the model.
    again = llm.load(folder, adapter=adapter.save(tmp_path / "adapter"), backend="numpy")
    row = text[0, 0].tolist()
    found = [m.score(row)[1:].mean() for m in (plain, again)]
    assert found[1] > found[0] + 0.05


def test_quantised_weights_stay_as_they_are(tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path, num_hidden_layers=1, eos_token_id=None)
    write_gguf(folder, tmp_path / "model.gguf", "Q4_1")
    text = np.random.default_rng(0).integers(0, 260, (1, 2, 6)).repeat(3, 0)
    adapters = [
        llm.fine_tune(llm.load(tmp_path / "model.gguf", dtype, backend="numpy"), text, learning_rate=1e-2)
        for dtype in (None, "float32")
    ]
    assert adapters[0].model.config.formats
    assert adapters[0].losses[-1] < adapters[0].losses[0]
    np.testing.assert_allclose(adapters[0].losses, adapters[1].losses, rtol=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (np.zeros((2, 3)), "text of shape"),
        (np.zeros((1, 1, 1), int), "text of shape"),
        (np.full((1, 1, 4), 900), "900"),
    ],
)
def test_text_that_cannot_be_learnt(tmp_path: Path, text: np.ndarray, message: str) -> None:
    model = llm.load(llm.write_random(tmp_path, num_hidden_layers=1), backend="numpy")
    with pytest.raises(PromptError, match=message):
        llm.fine_tune(model, text)


def test_layers_that_are_not_there(tmp_path: Path) -> None:
    model = llm.load(llm.write_random(tmp_path, num_hidden_layers=1), backend="numpy")
    with pytest.raises(DeclarationError, match="no linear layer of the model is called x_proj"):
        llm.fine_tune(model, np.zeros((1, 1, 4), int), targets=("x_proj",))


@pytest.mark.slow
def test_a_real_model_learns_as_in_torch() -> None:
    path = smollm2()
    model = llm.load(path, "float32")
    page = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
    tokens = np.array(model.tokenizer.encode(page).ids[: 20 * 2 * 48]).reshape(20, 2, 48)
    start = llm.fine_tune(model, tokens[:1], learning_rate=0.0)
    adapter = llm.fine_tune(model, tokens, learning_rate=1e-3)
    where: dict[str, Any] = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    reference = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    expected = by_torch(reference, start, tokens, 1e-3)
    np.testing.assert_allclose(adapter.losses, expected, rtol=0.02)
    assert adapter.losses[-5:].mean() < 0.9 * adapter.losses[:5].mean()
