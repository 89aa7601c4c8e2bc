"""Decoders of torch and transformers, for `benchmarks/decode.py`."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import DynamicCache, StaticCache

from benchmarks.decode_systems import Late, Row, now, stacked


class Eager:
    """Torch with a preallocated cache, of which a view is given to scaled-dot-product attention."""

    def __init__(self, folder: Path, row: Row) -> None:
        self.row, self.shape = row, row.shape
        found = stacked(folder, self.shape)
        ends = ("embedding", "norm", "head")
        self.layers = [
            {n: torch.from_numpy(np.ascontiguousarray(w[k].T)) for n, w in found.items() if n not in ends}
            for k in range(self.shape.layers)
        ]
        self.ends = {n: torch.from_numpy(np.ascontiguousarray(found[n])) for n in ends}
        self.ends["head"] = self.ends["head"].T.contiguous()
        s = self.shape
        sizes = (s.layers, s.batch, s.kv_heads, row.T, s.depth)
        self.keys, self.values = torch.zeros(sizes), torch.zeros(sizes)
        speeds = torch.from_numpy((10000.0 ** (-np.arange(0, s.depth, 2) / s.depth)).astype(np.float32))
        angles = torch.arange(row.T)[:, None] * speeds
        self.turn, self.lift = angles.cos(), angles.sin()
        self.holds: torch.Tensor | None = None

    def compile_seconds(self) -> float:
        """Nothing is compiled."""
        return 0.0

    def turned(self, x: torch.Tensor, turn: torch.Tensor, lift: torch.Tensor) -> torch.Tensor:
        """Rotary positions."""
        first, second = x.chunk(2, -1)
        return torch.cat([first * turn - second * lift, second * turn + first * lift], -1)

    def step(self, tokens: torch.Tensor, t: int) -> torch.Tensor:
        """The tokens after those at step t."""
        s = self.shape
        start = 0 if s.window is None else max(0, t - s.window + 1)
        x = self.ends["embedding"][tokens]
        for number, w in enumerate(self.layers):
            y = F.rms_norm(x, (s.width,), w["norm1"], 1e-6)
            q = F.linear(y, w["wq"]).view(s.batch, s.heads, 1, s.depth)
            k = F.linear(y, w["wk"]).view(s.batch, s.kv_heads, 1, s.depth)
            self.keys[number, :, :, t] = self.turned(k, self.turn[t], self.lift[t])[:, :, 0]
            self.values[number, :, :, t] = F.linear(y, w["wv"]).view(s.batch, s.kv_heads, s.depth)
            seen = slice(start, t + 1)
            mixed = F.scaled_dot_product_attention(
                self.turned(q, self.turn[t], self.lift[t]),
                self.keys[number, :, :, seen],
                self.values[number, :, :, seen],
            )
            x = x + F.linear(mixed.reshape(s.batch, -1), w["wo"])
            y = F.rms_norm(x, (s.width,), w["norm2"], 1e-6)
            x = x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])
        return F.linear(F.rms_norm(x, (s.width,), self.ends["norm"], 1e-6), self.ends["head"]).argmax(-1)

    @torch.inference_mode()
    def decode(self, prompt: np.ndarray, count: int) -> np.ndarray:
        """From an empty cache; the prompt goes step by step."""
        return self._run(torch.from_numpy(prompt).long(), 0, count)

    def _run(self, prompt: torch.Tensor, start: int, count: int) -> np.ndarray:
        found = []
        chosen = prompt[start]
        for t in range(start, len(prompt) + count - 1):
            following = self.step(chosen, t)
            chosen = prompt[t + 1] if t + 1 < len(prompt) else following
            if t + 1 >= len(prompt):
                found.append(chosen)
        return torch.stack(found).int().numpy()

    @torch.inference_mode()
    def late(self, prompt: np.ndarray, count: int) -> Late:
        """From a cache that one pass over the prompt has filled."""
        given = torch.from_numpy(prompt).long()
        self.fill(given)
        self._run(given, len(prompt) - 1, 1)
        began = now()
        found = self._run(given, len(prompt) - 1, count)
        return Late(found, *((now() - began) / count))

    def fill(self, prompt: torch.Tensor) -> None:
        """All steps of a prompt at once; a prompt that the cache holds since the last time is not read again."""
        if self.holds is None or not torch.equal(self.holds, prompt):
            self._read(prompt)
            self.holds = prompt

    def _read(self, prompt: torch.Tensor) -> None:
        s, length = self.shape, len(prompt)
        x = self.ends["embedding"][prompt.T]
        step = torch.arange(length)
        seen = step[None] <= step[:, None]
        if s.window is not None:
            seen &= step[None] > step[:, None] - s.window
        turn, lift = self.turn[:length], self.lift[:length]
        for number, w in enumerate(self.layers):
            y = F.rms_norm(x, (s.width,), w["norm1"], 1e-6)
            q, k, v = (F.linear(y, w[n]).view(s.batch, length, -1, s.depth).transpose(1, 2) for n in ("wq", "wk", "wv"))
            q, k = self.turned(q, turn, lift), self.turned(k, turn, lift)
            self.keys[number, :, :, :length], self.values[number, :, :, :length] = k, v
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + F.linear(mixed.transpose(1, 2).reshape(s.batch, length, -1), w["wo"])
            y = F.rms_norm(x, (s.width,), w["norm2"], 1e-6)
            x = x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])


class Compiled(Eager):
    """The same with the step compiled: shapes are fixed, so the whole cache is masked; a window is a ring.

    Each layer has a cache of its own; of one tensor for all layers torch.compile would copy the whole for each.
    """

    def __init__(self, folder: Path, row: Row) -> None:
        super().__init__(folder, row)
        self.seconds = 0.0
        self.room = self.shape.window or row.T
        self.rings = [[c[:, :, : self.room].clone() for c in cache] for cache in (self.keys, self.values)]
        self.places = torch.arange(self.room)
        self.compiled = torch.compile(self._fixed, dynamic=False, fullgraph=True)

    def compile_seconds(self) -> float:
        """The first step."""
        return self.seconds

    def step(self, tokens: torch.Tensor, t: int) -> torch.Tensor:
        began = time.perf_counter()
        slot = torch.tensor([t % self.room])
        found: torch.Tensor = self.compiled(tokens, slot, self.places <= t, self.turn[t], self.lift[t])
        self.seconds = self.seconds or time.perf_counter() - began
        return found

    def _fixed(self, tokens: Any, slot: Any, seen: Any, turn: Any, lift: Any) -> Any:
        s = self.shape
        x = self.ends["embedding"][tokens]
        for number, w in enumerate(self.layers):
            y = F.rms_norm(x, (s.width,), w["norm1"], 1e-6)
            q = F.linear(y, w["wq"]).view(s.batch, s.heads, 1, s.depth)
            k = F.linear(y, w["wk"]).view(s.batch, s.kv_heads, 1, s.depth)
            v = F.linear(y, w["wv"]).view(s.batch, s.kv_heads, 1, s.depth)
            keys, values = (ring[number] for ring in self.rings)
            keys.index_copy_(2, slot, self.turned(k, turn, lift))
            values.index_copy_(2, slot, v)
            mixed = F.scaled_dot_product_attention(
                self.turned(q, turn, lift), keys, values, attn_mask=seen[None, None, None]
            )
            x = x + F.linear(mixed.reshape(s.batch, -1), w["wo"])
            y = F.rms_norm(x, (s.width,), w["norm2"], 1e-6)
            x = x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])
        return F.linear(F.rms_norm(x, (s.width,), self.ends["norm"], 1e-6), self.ends["head"]).argmax(-1)

    def fill(self, prompt: torch.Tensor) -> None:
        """What the eager one reads, folded into the rings, which have lost some of it since the last time."""
        super().fill(prompt)
        first = max(0, len(prompt) - self.room)
        slots = torch.arange(first, len(prompt)) % self.room
        for rings, cache in zip(self.rings, (self.keys, self.values), strict=True):
            for ring, whole in zip(rings, cache, strict=True):
                ring[:, :, slots] = whole[:, :, first : len(prompt)]


class Transformers:
    """`generate` of transformers."""

    cache: str | None = None

    def __init__(self, folder: Path, row: Row) -> None:
        import transformers

        transformers.utils.logging.set_verbosity_error()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.row = row
        self.filled: dict[bytes, Any] = {}

    def compile_seconds(self) -> float:
        """What it may compile is in the time to the first token."""
        return 0.0

    def decode(self, prompt: np.ndarray, count: int, filled: Any = None) -> np.ndarray:
        """The tokens after a prompt; of a prompt that is in a cache already, only the last token is read."""
        given = torch.from_numpy(prompt.T.copy()).long()
        options: dict[str, Any] = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
        if filled is not None:
            options["past_key_values"] = filled
        elif self.cache is not None:
            options["cache_implementation"] = self.cache
        with torch.inference_mode():
            found = self.model.generate(given, attention_mask=torch.ones_like(given), pad_token_id=0, **options)
        return found[:, len(prompt) :].T.int().numpy()

    def late(self, prompt: np.ndarray, count: int) -> Late:
        """From a copy of a cache that one pass over the prompt has filled."""
        key = prompt.tobytes()
        if key not in self.filled:
            self.filled = {key: self._read(prompt)}
            self.decode(prompt, 1, copy.deepcopy(self.filled[key]))
        cache = copy.deepcopy(self.filled[key])
        began = now()
        tokens = self.decode(prompt, count, cache)
        return Late(tokens, *((now() - began) / count))

    def _read(self, prompt: np.ndarray) -> Any:
        """The cache after all tokens but the last."""
        cache = self.empty()
        with torch.inference_mode():
            self.model(torch.from_numpy(prompt[:-1].T.copy()).long(), past_key_values=cache, logits_to_keep=1)
        return cache

    def empty(self) -> Any:
        """A cache that grows."""
        return DynamicCache(config=self.model.config)


class Static(Transformers):
    """The same with a cache of fixed size."""

    cache = "static"

    def empty(self) -> Any:
        """A cache with room for the whole text."""
        return StaticCache(config=self.model.config, max_cache_len=self.row.T)
