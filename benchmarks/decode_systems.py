"""Ways to decode one checkpoint greedily, each behind the same few methods, for `benchmarks/decode.py`.

A system is made from a folder and a row. `decode(prompt, count)` returns new tokens of shape (count, batch).
`late(prompt, count)` returns the tokens and the seconds per token of decoding alone, from a state that the prompt
has filled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.decode_peers import Expert, Shape, normalised, turned

CHUNK = 64
LONG = 1024 * 4 * 256
"""Steps times layers times width: more is not decoded whole."""


@dataclass(frozen=True)
class Row:
    """One configuration: the model's sizes, the attention, the length and the batch."""

    config: str
    attention: str
    T: int
    batch: int

    @property
    def shape(self) -> Shape:
        """The sizes; both have as many weights a layer as a GPT-2 of that width would."""
        layers, width = map(int, self.config.split("x"))
        window = int(self.attention.split()[1]) if self.attention.startswith("window") else None
        heads = width // 64
        return Shape(layers, width, heads, heads, width * 8 // 3 // 64 * 64, 512, self.batch, window)

    @property
    def is_long(self) -> bool:
        """Whether a state is filled first, and only the last tokens are timed."""
        return self.T * self.shape.layers * self.shape.width > LONG


@dataclass(frozen=True)
class Late:
    """Tokens decoded from a filled state, and the seconds each took, by the clock and of the processor."""

    tokens: np.ndarray
    seconds_per_token: float
    processor_per_token: float


def now() -> np.ndarray:
    """The time by the clock and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def stacked(folder: Path, shape: Shape) -> dict[str, np.ndarray]:
    """The weights of a folder as the hand-written decoders want them: (layers, in, out)."""
    from polyrhythm import llm

    found = {name: np.asarray(w) for name, w in llm.load(folder, backend="numpy").weights.items()}
    layer = {
        "norm1": "input_layernorm",
        "wq": "self_attn.q_proj",
        "wk": "self_attn.k_proj",
        "wv": "self_attn.v_proj",
        "wo": "self_attn.o_proj",
        "norm2": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
    weights = {short: found[f"model.layers.{name}.weight"] for short, name in layer.items()}
    weights = {n: np.ascontiguousarray(w.swapaxes(1, 2)) if w.ndim == 3 else w for n, w in weights.items()}
    head = np.ascontiguousarray(found["lm_head.weight"].T)
    return weights | {"embedding": found["model.embed_tokens.weight"], "norm": found["model.norm.weight"], "head": head}


class Ours:
    """The compiled program."""

    def __init__(self, folder: Path, row: Row) -> None:
        from polyrhythm import llm

        self.model = llm.load(folder)
        self.model.tokenizer = None  # no peer makes text of its tokens
        self.is_compiled = False

    def compile_seconds(self) -> float:
        """What compiling took, ours and XLA's for all lengths."""
        stats = self.model.programs[0].stats
        ours = sum(stats.phases.values()) - stats.phases.get("run", 0.0)
        return ours + sum(one.seconds for one in stats.compilations)

    def decode(self, prompt: np.ndarray, count: int) -> np.ndarray:
        """The tokens after a prompt of shape (length, batch)."""
        found = self.model.generate(list(prompt.T), count)
        return np.stack([one.tokens for one in found], 1)

    def late(self, prompt: np.ndarray, count: int) -> Late:
        """By a stream in chunks: the time of the last whole one, from the end of the chunk before it to its own end.

        The first stream is not timed, it compiles.
        """
        if not self.is_compiled:
            self.is_compiled = True
            self.late(prompt, count)
        tokens, times = [], []
        for pieces in self.model.stream(list(prompt.T), count, chunk=CHUNK):
            tokens.append([piece.token for piece in pieces])
            times.append(now())
        gaps = np.diff(times, axis=0)[:, 0]
        # Between bursts of tokens a chunk is computed. The last one may not be whole.
        ends = [*np.flatnonzero(gaps > gaps.max() / 4), len(tokens) - 1]
        count, start = max((end - start, start) for start, end in pairwise(ends))
        return Late(np.array(tokens), *((times[start + count] - times[start]) / count))


class Jax:
    """What the two hand-written JAX decoders share."""

    kept: ClassVar[dict[tuple[Row, bytes], tuple[list[np.ndarray], list[np.ndarray]]]] = {}
    """Keys and values of the last text, for both."""

    def __init__(self, folder: Path, row: Row) -> None:
        self.row, self.shape = row, row.shape
        self.weights = stacked(folder, self.shape)
        self.seconds = 0.0

    def compile_seconds(self) -> float:
        """What compiling took, measured by the first call."""
        return self.seconds

    def filled(self, prompt: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Keys and values of given tokens, (batch, heads, steps, depth) for each layer; computed once for a text."""
        key = self.row, prompt.tobytes()
        if key not in Jax.kept:
            Jax.kept = {key: self._read(prompt)}
        return Jax.kept[key]

    def _read(self, prompt: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """One pass over the text."""
        import jax
        import jax.numpy as jnp
        from jax import lax

        shape, steps = self.shape, len(prompt)
        heads, depth = shape.kv_heads, shape.depth
        places = jnp.arange(steps)

        def one(x: Any, w: Any) -> Any:
            y = normalised(x, w["norm1"])
            rotate = jax.vmap(turned, in_axes=(0, 0))
            q, k = (rotate((y @ w[n]).reshape(steps, heads, depth), places) for n in ("wq", "wk"))
            v = (y @ w["wv"]).reshape(steps, heads, depth)

            def at(t: Any) -> Any:
                scores = jnp.einsum("hd,shd->hs", q[t], k) * depth**-0.5
                seen = places <= t
                if shape.window is not None:
                    seen &= places > t - shape.window
                return jnp.einsum("hs,shd->hd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1), v)

            mixed = lax.map(at, places, batch_size=128).reshape(steps, -1)
            x = x + mixed @ w["wo"]
            y = normalised(x, w["norm2"])
            return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], (k, v)

        stack = {n: w for n, w in self.weights.items() if n not in ("embedding", "norm", "head")}
        run = jax.jit(lambda x, stack: lax.scan(one, x, stack)[1])
        rows = [run(jnp.asarray(self.weights["embedding"][prompt[:, b]]), stack) for b in range(self.row.batch)]
        keys = [np.stack([np.asarray(r[0][n]) for r in rows]).swapaxes(1, 2) for n in range(shape.layers)]
        values = [np.stack([np.asarray(r[1][n]) for r in rows]).swapaxes(1, 2) for n in range(shape.layers)]
        return keys, values


class Padded(Jax):
    """A: a carried cache (batch, heads, T, depth) per layer in one loop, the full length masked."""

    def __init__(self, folder: Path, row: Row) -> None:
        import jax
        import jax.numpy as jnp

        super().__init__(folder, row)
        names = [n for n in self.weights if n not in ("embedding", "norm", "head")]
        self.layers = [{n: jnp.asarray(self.weights[n][k]) for n in names} for k in range(self.shape.layers)]
        self.ends = {n: jnp.asarray(self.weights[n]) for n in ("embedding", "norm", "head")}
        self.loop = jax.jit(self._loop, donate_argnums=(0,))

    def decode(self, prompt: np.ndarray, count: int) -> np.ndarray:
        """From an empty cache."""
        carry = self.empty()
        began = time.perf_counter()
        carry = self.run(carry, prompt, 0, len(prompt) + count - 1)
        tokens = np.asarray(carry[1])
        self.seconds = self.seconds or time.perf_counter() - began
        return tokens[len(prompt) :][:count]

    def late(self, prompt: np.ndarray, count: int) -> Late:
        """From a cache that one pass over the prompt has filled."""
        length = len(prompt)

        def start() -> Any:
            (_, tokens), caches = self.empty()[:2], []
            for pair in zip(*self.filled(prompt), strict=True):
                for array in pair:
                    full = np.zeros((*array.shape[:2], self.row.T, array.shape[3]), "float32")
                    full[:, :, :length] = array
                    caches.append(full)
            return caches, tokens

        return self._timed(start, prompt, length, count)

    def _timed(self, start: Callable[[], Any], prompt: np.ndarray, length: int, count: int) -> Late:
        """The last token of the prompt is computed anew, since it leads to the first new one."""
        import jax
        import jax.numpy as jnp

        state = start()
        jax.block_until_ready(self.run(jax.tree.map(jnp.array, state), prompt, length - 1, length))  # compiles
        carry = jax.block_until_ready(jax.tree.map(jnp.array, state))
        began = now()
        carry = self.run(carry, prompt, length - 1, length + count - 1)
        tokens = np.asarray(carry[1])
        return Late(tokens[length:][:count], *((now() - began) / count))

    def empty(self) -> Any:
        """Caches of zeros, and room for the tokens."""
        import jax.numpy as jnp

        s = self.shape
        sizes = (s.batch, s.kv_heads, self.row.T, s.depth)
        return [jnp.zeros(sizes) for _ in range(2 * s.layers)], jnp.zeros((self.row.T, s.batch), jnp.int32)

    def run(self, carry: Any, prompt: np.ndarray, start: int, end: int) -> Any:
        """Steps from start to before end, each writing the token after it."""
        given = np.zeros((self.row.T, self.row.batch), np.int32)
        given[: len(prompt)] = prompt
        caches, tokens = carry
        tokens = tokens.at[: len(prompt)].set(prompt) if start else tokens.at[0].set(prompt[0])
        bounds = np.array([start, end, len(prompt)], np.int32)
        return self.loop((caches, tokens), self.layers, self.ends, given, bounds)

    def _loop(self, carry: Any, layers: Any, ends: Any, given: Any, bounds: Any) -> Any:
        import jax
        import jax.numpy as jnp
        from jax import lax

        s = self.shape
        group = s.heads // s.kv_heads
        g, own = ("", ()) if group == 1 else ("g", (group,))
        places = jnp.arange(self.row.T)

        def step(t: Any, carry: Any) -> Any:
            caches, tokens = carry
            x = ends["embedding"][lax.dynamic_index_in_dim(tokens, t, keepdims=False)]
            written = []
            for number, w in enumerate(layers):
                keys, values = caches[2 * number : 2 * number + 2]
                y = normalised(x, w["norm1"])
                q = turned((y @ w["wq"]).reshape(s.batch, s.kv_heads, *own, s.depth), t)
                k = turned((y @ w["wk"]).reshape(s.batch, s.kv_heads, 1, s.depth), t)
                v = (y @ w["wv"]).reshape(s.batch, s.kv_heads, 1, s.depth)
                keys = lax.dynamic_update_slice(keys, k, (0, 0, t, 0))
                values = lax.dynamic_update_slice(values, v, (0, 0, t, 0))
                scores = jnp.einsum(f"bk{g}d,bksd->bk{g}s", q, keys) * s.depth**-0.5
                seen = places <= t
                if s.window is not None:
                    seen &= places > t - s.window
                weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
                mixed = jnp.einsum(f"bk{g}s,bksd->bk{g}d", weights, values)
                x = x + mixed.reshape(s.batch, -1) @ w["wo"]
                y = normalised(x, w["norm2"])
                x = x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
                written += [keys, values]
            chosen = jnp.argmax(normalised(x, ends["norm"]) @ ends["head"], -1).astype(jnp.int32)
            following = lax.dynamic_index_in_dim(given, jnp.minimum(t + 1, self.row.T - 1), keepdims=False)
            chosen = jnp.where(t + 1 < bounds[2], following, chosen)
            return written, lax.dynamic_update_slice(tokens, chosen[None], (t + 1, 0))

        return lax.fori_loop(bounds[0], bounds[1], step, carry)


class ByExpert(Jax):
    """B: every trick that is known; the prompt is one token, since the loop takes its own."""

    def __init__(self, folder: Path, row: Row) -> None:
        super().__init__(folder, row)
        self.expert = Expert(self.shape, self.weights)

    def decode(self, prompt: np.ndarray, count: int) -> np.ndarray:
        """From empty caches that grow."""
        import jax.numpy as jnp

        began = time.perf_counter()
        tokens = np.asarray(self.expert(jnp.asarray(prompt[0]), len(prompt) + count))
        self.seconds = self.seconds or time.perf_counter() - began
        return tokens[len(prompt) :]

    def late(self, prompt: np.ndarray, count: int) -> Late:
        """From caches that one pass over the prompt has filled, in the expert's layout."""
        import jax
        import jax.numpy as jnp

        s, length = self.shape, len(prompt)
        room = s.window or self.row.T
        first = max(0, length - room)
        slots = np.arange(first, length) % room
        caches = []
        for pair in zip(*self.filled(prompt), strict=True):
            for array in pair:
                flat = array.reshape(-1, length, s.depth)
                full = np.zeros((len(flat), room, s.depth), "float32")
                full[:, slots] = flat[:, first:]
                caches.append(full)
        tokens = np.zeros((self.row.T, s.batch), np.int32)

        def run(end: int) -> Any:
            carry = (jnp.asarray(prompt[-1]), [jnp.array(c) for c in caches], jnp.array(tokens))
            jax.block_until_ready(carry)
            began = now()
            done = self.expert.loop(
                carry, self.expert.layers, self.expert.ends, np.int32(length - 1), np.int32(length - 1 + end)
            )
            found = np.asarray(done[2])
            return found, np.asarray(done[0]), now() - began

        run(1)
        found, last, seconds = run(count)
        written = np.concatenate([found[length : length + count - 1], last[None]])
        return Late(written, *(seconds / count))


SYSTEMS: dict[str, Callable[[Path, Row], Any]] = {"ours": Ours, "jax padded": Padded, "jax expert": ByExpert}
