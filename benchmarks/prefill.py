"""`python -m benchmarks.prefill [--quick]`: a prompt given to a decoder, against a batched forward pass by hand.

The program is a decoder as anybody would write it, step by step: the token of a step is given within the prompt and
otherwise chosen from the scores before. That the prompt runs layer by layer, all its steps at once, is the compiler's
doing. It is timed against a forward pass written for whole sequences, and against itself compiled without the pass
that splits it.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import polyrhythm as pr
from benchmarks.harness import Fact, Result, race, report

LAYERS, WIDTH, HEADS, WORDS, STEPS = 4, 256, 4, 512, 512
DEPTH = WIDTH // HEADS
LAYER_SHAPES = {
    "wq": (WIDTH, HEADS, DEPTH),
    "wk": (WIDTH, HEADS, DEPTH),
    "wv": (WIDTH, HEADS, DEPTH),
    "wo": (HEADS, DEPTH, WIDTH),
    "w1": (WIDTH, 4 * WIDTH),
    "w2": (4 * WIDTH, WIDTH),
    "g1": (WIDTH,),
    "g2": (WIDTH,),
}


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    report("prefill", run(parser.parse_args().quick))


def run(quick: bool) -> list[Result | Fact]:
    """The scores after the last token of a prompt."""
    steps, rounds = (64, 3) if quick else (STEPS, 15)
    given = weights(steps)
    outputs, layers = decoder()
    ours = pr.compile(outputs, bounds={layers: LAYERS})
    with pr.settings(without=["split"]):
        stepping = pr.compile(outputs, bounds={layers: LAYERS})
    by_hand = jax.jit(forward)
    ways = {
        "ours": lambda: ours(bounds={"T": steps}, **given),
        "batched forward by hand": lambda: by_hand(**given),
    }
    name = f"prefill of {steps} tokens, {LAYERS} x {WIDTH}"
    prefill = race(name, ways, {"batched forward by hand": 1.15}, rounds, tolerance=1e-3)
    slow = {"ours": ways["ours"], "step by step": lambda: stepping(bounds={"T": steps}, **given)}
    steps_race = race(f"{name}: without splitting", slow, None, max(3, rounds // 3), tolerance=1e-3)
    factor = 1 / steps_race.ratios["step by step"]
    return [prefill, steps_race, Fact("prefill over stepping", factor, "times faster")]


def weights(steps: int) -> dict[str, jax.Array]:
    """Random weights and a random prompt."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(WIDTH), "float32")

    found = {
        n: normal(LAYERS, *shape) if n[0] == "w" else jnp.ones((LAYERS, *shape)) for n, shape in LAYER_SHAPES.items()
    }
    prompt = jnp.asarray(rng.integers(0, WORDS, steps), "int32")
    return found | {"table": normal(WORDS, WIDTH), "places": normal(steps, WIDTH), "prompt": prompt}


def decoder() -> tuple[pr.Tensor, pr.Bound]:
    """The scores after the prompt, and the number of layers."""
    t, T = pr.dim("t")
    layer, L = pr.dim("layer")
    P = pr.size("P", max=T)
    prompt = pr.input("prompt", (P,), (), "int32")
    table, places = pr.input("table", (WORDS, WIDTH)), pr.input("places", (WIDTH,), (t,))
    w = {name: pr.input(name, shape, (layer,)) for name, shape in LAYER_SHAPES.items()}
    token = pr.recurrent((), (t,), "int32")
    state = pr.recurrent((WIDTH,), (t, (layer, L + 1)))
    state[t, 0] = pr.take(table, token, 0) + places
    x = normalised(state) * w["g1"]
    q, k, v = (pr.einsum("w,whd->hd", x, w[name]) for name in ("wq", "wk", "wv"))
    scores = pr.einsum("hd,shd->hs", q, k[0 : t + 1, layer]) * DEPTH**-0.5
    mixed = pr.einsum("hs,shd->hd", pr.softmax(scores, -1), v[0 : t + 1, layer])
    middle = state + pr.einsum("hd,hdw->w", mixed, w["wo"])
    state[t, layer + 1] = middle + pr.silu((normalised(middle) * w["g2"]) @ w["w1"]) @ w["w2"]
    logits = normalised(state[t, L]) @ table.transpose()
    token[t < P] = pr.take(prompt, pr.value(t), 0)
    token[t >= P] = logits[t - 1].argmax().cast("int32")
    return logits[P - 1], L


def normalised(x: pr.Tensor) -> pr.Tensor:
    """Divided by its root mean square."""
    return x * pr.rsqrt((x * x).mean(-1) + 1e-5)


def forward(prompt: jax.Array, table: jax.Array, places: jax.Array, **w: jax.Array) -> jax.Array:
    """The same scores for a whole sequence, as people write it."""

    def norm(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    count = prompt.shape[0]
    h = table[prompt] + places
    mask = jnp.tril(jnp.ones((count, count), bool))
    for i in range(LAYERS):
        x = norm(h) * w["g1"][i]
        q, k, v = (jnp.einsum("tw,whd->htd", x, w[name][i]) for name in ("wq", "wk", "wv"))
        scores = jnp.where(mask, jnp.einsum("htd,hsd->hts", q, k) * DEPTH**-0.5, -jnp.inf)
        mixed = jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores, -1), v)
        h = h + jnp.einsum("htd,hdw->tw", mixed, w["wo"][i])
        h = h + jax.nn.silu((norm(h) * w["g2"][i]) @ w["w1"][i]) @ w["w2"][i]
    return norm(h[-1]) @ table.T


if __name__ == "__main__":
    main()
