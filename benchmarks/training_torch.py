"""The same training in torch, eager and compiled: `python -m benchmarks.training_torch KIND SHAPE WAY`.

As a script it does some iterations in a process of its own and prints seconds and peak memory as JSON. A compiled
model runs there because it may take longer to compile than anyone waits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.training_models import LETTERS, RATE, Shape, new_lstm, new_transformer

ITERATIONS = 3


class LSTMText(nn.Module):
    """Letters by (T, batch)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, shape.width)
        self.lstm = nn.LSTM(shape.width, shape.width)
        self.head = nn.Linear(shape.width, LETTERS)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(letters))[0])


class LoopText(LSTMText):
    """The same with a loop over steps, as cells are written that torch does not have."""

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        own: Any = self.lstm
        before = self.embed(letters) @ own.weight_ih_l0.T + (own.bias_ih_l0 + own.bias_hh_l0)
        h, c = (torch.zeros(letters.shape[1], own.hidden_size) for _ in range(2))
        found, recurrent = [], own.weight_hh_l0.T
        for given in before:
            into, forget, cell, out = (given + h @ recurrent).chunk(4, -1)
            c = forget.sigmoid() * c + into.sigmoid() * cell.tanh()
            h = out.sigmoid() * c.tanh()
            found.append(h)
        return self.head(torch.stack(found))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, turn: torch.Tensor, lift: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape

        def by_head(layer: nn.Module) -> torch.Tensor:
            return layer(x).view(batch, steps, self.heads, -1).transpose(1, 2)

        def turned(y: torch.Tensor) -> torch.Tensor:
            first, second = y.chunk(2, -1)
            return torch.cat([first * turn - second * lift, second * turn + first * lift], -1)

        q, k, v = turned(by_head(self.q_proj)), turned(by_head(self.k_proj)), by_head(self.v_proj)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, steps, width))


class _MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.self_attn, self.mlp = _Attention(width, heads), _MLP(width)

    def forward(self, x: torch.Tensor, turn: torch.Tensor, lift: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, lift)
        return x + self.mlp(self.post_attention_layernorm(x))


class TransformerText(nn.Module):
    """Letters by (batch, T)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, shape.width)
        self.layers = nn.ModuleList(_Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.head = nn.Linear(shape.width, LETTERS, bias=False)
        self.depth = shape.width // shape.heads

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        speeds = 10000.0 ** (-torch.arange(0, self.depth, 2) / self.depth)
        angles = torch.arange(letters.shape[1])[:, None] * speeds
        turn, lift = angles.cos(), angles.sin()
        x = self.embed(letters)
        for layer in self.layers:
            x = layer(x, turn, lift)
        return self.head(self.norm(x))


MODELS: dict[str, Callable[[Shape], nn.Module]] = {
    "lstm": LSTMText,
    "loop": LoopText,
    "transformer": TransformerText,
}


def trained(kind: str, shape: Shape, weights: dict[str, np.ndarray], compiled: bool = False) -> Callable[..., Any]:
    """Iterations of Adam from given weights on batches with the iterations first; losses and last weights."""

    def run(now: np.ndarray, following: np.ndarray) -> dict[str, Any]:
        model.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in weights.items()})
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
        losses = []
        for letters, wanted in zip(torch.tensor(now).long(), torch.tensor(following).long(), strict=True):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(called(letters).reshape(-1, LETTERS), wanted.reshape(-1))
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        return {"loss": np.array(losses), "weights": {n: p.detach().numpy() for n, p in model.named_parameters()}}

    model = MODELS[kind](shape)
    called: Any = torch.compile(model) if compiled else model
    return run


def memory(kind: str) -> int:
    """Bytes that the process takes, as Linux counts them: now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(kind)))


def main() -> None:
    """One way in a process of its own."""
    kind, sizes, way = sys.argv[1:]
    shape = Shape(**json.loads(sizes))
    model = (new_lstm if kind == "lstm" else new_transformer)(shape)
    run = trained(kind, shape, model.weights(), way == "compiled")
    now, following = shape.letters(kind, 1)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    started = time.perf_counter()
    run(now, following)
    first = time.perf_counter() - started
    peak = memory("VmHWM") - before
    now, following = shape.letters(kind, ITERATIONS)
    started, used = time.perf_counter(), time.process_time()
    run(now, following)
    seconds, processor = (time.perf_counter() - started) / ITERATIONS, (time.process_time() - used) / ITERATIONS
    print(json.dumps({"first": first, "seconds": seconds, "processor": processor, "peak": peak}))


if __name__ == "__main__":
    main()
