"""Programs whose memory plan is compared with what XLA allocates: named programs, benchmarks, decoders, learners.

Each is a function that compiles the program, and the bounds it is asked about. Nothing of it has to be run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import polyrhythm as pr
from benchmarks import prefill, programs, training, training_models
from polyrhythm import rl
from tests.compiler.backends import decoders
from tests.memory_programs import PROGRAMS


@dataclass(frozen=True)
class Case:
    """What to compile, with bounds that are fixed for good if it is a pair, and the bounds to ask about."""

    outputs: Callable[[], Any]
    bounds: Mapping[str, int]
    slow: bool = False

    def program(self, **options: Any) -> pr.Program:
        """The program on JAX."""
        made = self.outputs()
        outputs, known = made if isinstance(made, tuple) else (made, {})
        return pr.compile(outputs, bounds=known, **options)


def prefix(reduced: Callable[[pr.Tensor, Any, Any], pr.Tensor]) -> Callable[[], pr.Tensor]:
    """Something that each step makes of the steps up to it, or from it on."""

    def made() -> pr.Tensor:
        t, T = pr.dim("t")
        return reduced(pr.input("x", (8,), (t,)), t, T)

    return made


def attention() -> pr.Tensor:
    """Causal attention of four heads for all steps of given queries, keys and values."""
    t, _ = pr.dim("t")
    q, k, v = (pr.input(name, (4, 16), (t,)) for name in "qkv")
    scores = pr.einsum("hd,shd->hs", q, k[0 : t + 1])
    return pr.einsum("hs,shd->hd", pr.softmax(scores, -1), v[0 : t + 1])


def trained(kind: training.Kind, how: Any) -> Callable[[], Any]:
    """A training step of one of the models of the benchmark."""

    def made() -> Any:
        return kind.train(kind.new(kind.shape), kind.shape, how).outputs

    return made


def ppo(hidden: tuple[int, ...], **settings: Any) -> Callable[[], Any]:
    """PPO on environments that are compiled along."""

    def made() -> Any:
        source = rl.Arrays(rl.CartPole(), 32)
        model = rl.ActorCritic(source.observations, source.actions, hidden, np.random.default_rng(0))
        found = rl.ppo(source, model, rl.PPOSettings(**settings))
        return found.outputs, found.bounds

    return made


def prompt() -> Any:
    """The decoder of the benchmark of prefill, with its layers."""
    outputs, layers = prefill.decoder()
    return outputs, {layers: prefill.LAYERS}


def layered(sizes: decoders.Sizes, attend: decoders.Attend = decoders.CAUSAL) -> Callable[[], Any]:
    """A decoder with a number of layers that is known."""
    return lambda: (decoders.decoder(sizes, attend), {decoders.L: sizes.layers})


LSTM = training.lstm_kind(training_models.Shape(128, 16, 64))
TRANSFORMER = training.transformer_kind(training_models.Shape(128, 4, 64, layers=2, heads=4))
LARGE = decoders.Sizes(batch=2, kv_heads=2, layers=3, heads=4, depth=32, hidden=256, words=512)

CORPUS: dict[str, Case] = {
    **{name: Case(lambda made=made: made().outputs, made().bounds) for name, made in PROGRAMS.items()},  # type: ignore[misc]
    "prefix sum": Case(prefix(lambda x, t, T: x[0 : t + 1].sum(0)), {"T": 20_000}),
    "suffix max": Case(prefix(lambda x, t, T: x[t:T].max(0)), {"T": 3000}, slow=True),
    "prefix argmax": Case(prefix(lambda x, t, T: x[0 : t + 1].argmax(0)), {"T": 3000}, slow=True),
    "prefix dot": Case(
        prefix(lambda x, t, T: pr.einsum("sd,sd->d", x[0 : t + 1], x[0 : t + 1])), {"T": 3000}, slow=True
    ),
    "window sum": Case(prefix(lambda x, t, T: x[pr.max(0, t - 99) : t + 1].sum(0)), {"T": 5000}, slow=True),
    "prefix sort": Case(prefix(lambda x, t, T: pr.sort(x[0 : t + 1], 0).axes[0]), {"T": 500}, slow=True),
    "attention 300": Case(attention, {"T": 300}, slow=True),
    "attention 1024": Case(attention, {"T": 1024}),
    "attention 2049": Case(attention, {"T": 2049}, slow=True),
    "ema all values": Case(lambda: programs.ema(True), {"T": 1_000_000}),
    "ema last": Case(lambda: programs.ema(False), {"T": 1_000_000}, slow=True),
    "benchmark lstm": Case(lambda: programs.lstm(32, 128, 128)[0], {"T": 200}, slow=True),
    "benchmark edit distance": Case(programs.edit_distance, {"I": 1000, "J": 1000}, slow=True),
    "benchmark decode": Case(lambda: programs.decode(4, 64, None), {"T": 2000}),
    "benchmark windowed decode": Case(lambda: programs.decode(4, 64, 128), {"T": 1500}),
    "benchmark prefill": Case(prompt, {"T": 512, "P": 512}),
    "decoder": Case(layered(LARGE), {"T": 600}, slow=True),
    "windowed decoder": Case(layered(LARGE, decoders.windowed(64)), {"T": 600}, slow=True),
    "lstm training": Case(trained(LSTM, None), {"I": 2, "T": 128}, slow=True),
    "lstm training, rematerialised": Case(trained(LSTM, 16), {"I": 2, "T": 128}, slow=True),
    "transformer training": Case(trained(TRANSFORMER, False), {"I": 2, "B": 4, "T": 128}, slow=True),
    "transformer training, rematerialised": Case(trained(TRANSFORMER, True), {"I": 2, "B": 4, "T": 128}, slow=True),
    "ppo": Case(ppo((64, 64)), {"I": 2}, slow=True),
}
