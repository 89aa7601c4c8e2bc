"""Batches of rows of different lengths: an RNN, attention and an MLP, with their gradients by the weights.

The peers: *padded* is a jitted JAX function over the longest row, masked; *nested* is torch with jagged nested tensors,
for the RNN a packed sequence. *Spread* is the longest row over the mean: at 1 all rows are alike, at 4 three quarters
of what padding computes are for nothing. All take turns, each with its inputs where it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import polyrhythm as pr
from benchmarks.harness import Fact, Result, race

ROWS, WIDTH = 64, 64
AT_SPREAD, AT_NONE = 1.8, 0.95


def lengths_of(spread: int, longest: int) -> np.ndarray:
    """Lengths with a longest row of `spread` times their mean, in no order."""
    random = np.random.default_rng(1)
    if spread == 1:
        return np.full(ROWS, longest, "int32")
    drawn = random.exponential(1.0, ROWS)
    scale = _scale(drawn, longest, spread)
    found = np.clip(np.round(drawn * scale), 1, longest).astype("int32")
    found[0] = longest
    return random.permutation(found)


def _scale(drawn: np.ndarray, longest: int, spread: int) -> float:
    """The scale at which the mean of the clipped lengths is a share of the longest, by bisection."""
    low, high = 0.0, 100.0 * longest
    for _ in range(60):
        middle = (low + high) / 2
        mean = np.clip(drawn * middle, 1, longest).mean()
        low, high = (middle, high) if mean < longest / spread else (low, middle)
    return high


def model(kind: str) -> tuple[pr.Tensor, pr.Tensor]:
    """A loss over a ragged batch, and its gradient by a matrix that all rows share."""
    b, B = pr.dim("b")
    lengths = pr.input("lengths", (), (b,), "int32")
    s, S = pr.dim("s", extent=lengths)
    x, w = pr.input("x", (WIDTH,), (b, s)), pr.input("w", (WIDTH, WIDTH))
    if kind == "rnn":
        h = pr.recurrent((WIDTH,), (b, s))
        h[b, 0] = pr.tanh(x[b, 0])
        h[b, s + 1] = pr.tanh(h @ w + x[b, s + 1])
        row = h[b, 0:S].sum(0)
    elif kind == "attention":
        q = x @ w
        row = (pr.softmax(x[b, 0:S] @ q / 8.0, 0) @ x[b, 0:S])[b, 0:S].sum(0)
    else:
        row = pr.tanh(pr.tanh(x @ w) @ w)[b, 0:S].sum(0)
    loss = (row * row).sum(0)[0:B].sum(0)
    return loss, pr.grad(loss, w)


def padded(kind: str) -> Callable[..., Any]:
    """The same in JAX over the longest row."""
    import jax
    import jax.numpy as jnp

    def loss(w: Any, x: Any, lengths: Any) -> Any:
        inside = jnp.arange(x.shape[1])[None, :] < lengths[:, None]
        if kind == "rnn":

            def step(h: Any, item: Any) -> Any:
                new = jnp.tanh(h @ w + item)
                return new, new

            first = jnp.tanh(x[:, 0])
            _, rest = jax.lax.scan(step, first, x[:, 1:].swapaxes(0, 1))
            states = jnp.concatenate([first[None], rest]).swapaxes(0, 1)
            row = jnp.where(inside[..., None], states, 0).sum(1)
        elif kind == "attention":
            scores = jnp.einsum("bsd,btd->bts", x, x @ w) / 8.0
            weights = jax.nn.softmax(jnp.where(inside[:, None, :], scores, -jnp.inf), -1)
            row = jnp.where(inside[..., None], weights @ x, 0).sum(1)
        else:
            row = jnp.where(inside[..., None], jnp.tanh(jnp.tanh(x @ w) @ w), 0).sum(1)
        return (row * row).sum()

    return jax.jit(jax.value_and_grad(loss))


def nested(kind: str, x: np.ndarray, lengths: np.ndarray, w: np.ndarray) -> Callable[[], Any]:
    """The same in torch over nested tensors that hold no padding."""
    import torch

    rows = [torch.from_numpy(row[:size].copy()) for row, size in zip(x, lengths, strict=True)]
    weight = torch.from_numpy(w.copy()).requires_grad_()
    sizes = torch.from_numpy(lengths.astype("int64"))
    jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    cell = torch.nn.RNN(WIDTH, WIDTH, bias=False)
    cell.weight_ih_l0.data = torch.eye(WIDTH)
    cell.weight_ih_l0.requires_grad_(False)
    own = torch.repeat_interleave(torch.arange(len(rows)), sizes)

    def states() -> Any:
        if kind == "rnn":
            return cell(packed)[0]
        if kind == "attention":
            query, keys = ((t.unsqueeze(2)).transpose(1, 2) for t in (jagged @ weight, jagged))
            mixed = torch.nn.functional.scaled_dot_product_attention(query, keys, keys, scale=1 / 8)
            return mixed.transpose(1, 2).squeeze(2)
        return torch.tanh(torch.tanh(jagged @ weight) @ weight)

    def run() -> Any:
        if kind == "rnn":
            cell.weight_hh_l0.data = weight.data.T
            made = states()
            order = torch.cat([made.sorted_indices[:n] for n in made.batch_sizes.tolist()])
            values, by, rate = made.data, order, cell.weight_hh_l0
        else:
            values, by, rate = states().values(), own, weight
        row = torch.zeros(len(rows), WIDTH).index_add(0, by, values)
        loss = (row * row).sum()
        (slope,) = torch.autograd.grad(loss, rate)
        return loss.detach().numpy(), (slope.T if kind == "rnn" else slope).numpy()

    return run


def compared(kind: str, spread: int, longest: int, rounds: int) -> Result:
    """One model at one spread, ours and the peers taking turns."""
    import jax

    lengths = lengths_of(spread, longest)
    random = np.random.default_rng(0)
    x = np.zeros((ROWS, longest, WIDTH), "float32")
    for row, size in zip(x, lengths, strict=True):
        row[:size] = random.normal(size=(size, WIDTH))
    w = (random.normal(size=(WIDTH, WIDTH)) / WIDTH).astype("float32")
    program, peer = pr.compile(model(kind)), padded(kind)
    held = jax.device_put(x), jax.device_put(lengths), jax.device_put(w)

    def ours() -> Any:
        return jax.block_until_ready(program(x=held[0], lengths=held[1], w=held[2]))

    def theirs() -> Any:
        return jax.block_until_ready(peer(held[2], held[0], held[1]))

    limits = {"padded": 1 / AT_SPREAD if spread > 1 else 1 / AT_NONE}
    runs = {"ours": ours, "padded": theirs, "nested": nested(kind, x, lengths, w)}
    return race(f"{kind}, spread {spread}", runs, limits, rounds, 1e-2)


def run(quick: bool) -> list[Result | Fact]:
    """Every model at no spread and at four."""
    longest, rounds = (32, 2) if quick else (512, 9)
    pairs = [(kind, spread) for kind in ("rnn", "attention", "mlp") for spread in (1, 4)]
    return [compared(kind, spread, longest, rounds) for kind, spread in pairs]
