"""Training by name: algorithm, environments, model and settings, with logs, evaluation and checkpoints.

The training is one program. At the end of each iteration a host function is told its figures, prints them and
writes them down; the environment, if it is one of the host, is another. Both say how to be saved, so that a run
that was stopped goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import value
from polyrhythm.language.inputs import host
from polyrhythm.nn.files import save
from polyrhythm.rl.a2c import Settings as A2CSettings
from polyrhythm.rl.a2c import a2c
from polyrhythm.rl.distributional import c51, qr_dqn
from polyrhythm.rl.dqn import Settings as DQNSettings
from polyrhythm.rl.dqn import dqn
from polyrhythm.rl.evaluation import Evaluator
from polyrhythm.rl.gym import Gym
from polyrhythm.rl.impala import Settings as ImpalaSettings
from polyrhythm.rl.impala import impala
from polyrhythm.rl.logs import File, Log, Row, Sink
from polyrhythm.rl.normalization import Normalized
from polyrhythm.rl.policies import ActorCritic
from polyrhythm.rl.ppo import Settings as PPOSettings
from polyrhythm.rl.ppo import ppo
from polyrhythm.rl.reinforce import Settings as ReinforceSettings
from polyrhythm.rl.reinforce import reinforce
from polyrhythm.rl.running import Source, unwrapped
from polyrhythm.rl.sac import Settings as SACSettings
from polyrhythm.rl.sac import SoftActorCritic, sac
from polyrhythm.rl.settings import made
from polyrhythm.rl.td3 import DDPGSettings, DeterministicActorCritic, ddpg, td3
from polyrhythm.rl.td3 import Settings as TD3Settings
from polyrhythm.rl.training import Training
from polyrhythm.rl.values import QNetwork
from polyrhythm.runtime.checkpoints import Checkpoints
from polyrhythm.runtime.program import compile
from polyrhythm.runtime.settings import quiet

Random = np.random.Generator | None


@dataclass(frozen=True)
class PolicyOptions:
    """What there is to choose of an `ActorCritic`."""

    shared: bool = False
    memory: str | None = None
    context: int = 32


@dataclass(frozen=True)
class QOptions:
    """What there is to choose of a `QNetwork`."""

    dueling: bool = False


@dataclass(frozen=True)
class QuantileOptions(QOptions):
    """With quantiles of returns."""

    atoms: int = 51


@dataclass(frozen=True)
class CategoricalOptions(QuantileOptions):
    """With probabilities of returns between two; returns beyond them count as these."""

    v_min: float = 0.0
    v_max: float = 100.0


@dataclass(frozen=True)
class NoOptions:
    """Nothing to choose."""


def _categorical(*spaces: Any, v_min: float = 0.0, v_max: float = 100.0, atoms: int = 51, **options: Any) -> QNetwork:
    return QNetwork(*spaces, atoms=atoms, support=(v_min, v_max), **options)


def _quantiles(*spaces: Any, atoms: int = 51, **options: Any) -> QNetwork:
    return QNetwork(*spaces, atoms=atoms, **options)


def _one_critic(*spaces: Any, **options: Any) -> DeterministicActorCritic:
    return DeterministicActorCritic(*spaces, **{"critics": 1, **options})


@dataclass(frozen=True)
class Algorithm:
    """What makes a training, what it can be told, what it trains, and what that can be told."""

    make: Callable[..., Training]
    settings: type
    model: Callable[..., Any]
    options: type = NoOptions
    on_policy: bool = False


def _on_policy(make: Callable[..., Training], settings: type) -> Algorithm:
    return Algorithm(make, settings, ActorCritic, PolicyOptions, on_policy=True)


ALGORITHMS: dict[str, Algorithm] = {
    "a2c": _on_policy(a2c, A2CSettings),
    "c51": Algorithm(c51, DQNSettings, _categorical, CategoricalOptions),
    "ddpg": Algorithm(ddpg, DDPGSettings, _one_critic),
    "dqn": Algorithm(dqn, DQNSettings, QNetwork, QOptions),
    "impala": _on_policy(impala, ImpalaSettings),
    "ppo": _on_policy(ppo, PPOSettings),
    "qr-dqn": Algorithm(qr_dqn, DQNSettings, _quantiles, QuantileOptions),
    "reinforce": _on_policy(reinforce, ReinforceSettings),
    "sac": Algorithm(sac, SACSettings, SoftActorCritic),
    "td3": Algorithm(td3, TD3Settings, DeterministicActorCritic),
}


def algorithm_of(name: str) -> Algorithm:
    """An algorithm by its name.

    >>> algorithm_of("ppo").settings().clip_range
    0.2
    """
    if name not in ALGORITHMS:
        raise DeclarationError(f"there is no algorithm {name!r}", fix=f"use one of {', '.join(map(repr, ALGORITHMS))}")
    return ALGORITHMS[name]


def model_for(algorithm: str, environments: Source, hidden: Sequence[int], rng: Random = None, **options: Any) -> Any:
    """The model that an algorithm trains in some environments; `options` such as memory="lstm" are the model's.

    >>> from polyrhythm import rl
    >>> type(model_for("dqn", rl.Arrays(rl.CartPole(), 1), (4,), dueling=True)).__name__
    'QNetwork'
    """
    spaces = environments.observations, environments.actions, tuple(hidden)
    return algorithm_of(algorithm).model(*spaces, rng=rng, **model_options(algorithm, options))


def model_options(algorithm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of the model of an algorithm: those given, from values or texts, and what the others are then.

    >>> model_options("qr-dqn", {"atoms": "11"})
    {'dueling': False, 'atoms': 11}
    """
    kind = algorithm_of(algorithm).options
    names = [field.name for field in fields(kind)]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise DeclarationError(
            f"the model of {algorithm} does not know {unknown[0]}",
            fix=f"it knows {', '.join(names)}" if names else "leave it out, or use ppo",
        )
    # A memory may be a module of one's own.
    own = {name: value for name, value in given.items() if not isinstance(value, str | int | float | None)}
    return vars(made(kind, {name: value for name, value in given.items() if name not in own})) | own


class Outside:
    """What checkpoints keep besides the program: the log, and environments of the host."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts

    def save(self) -> dict[str, Any]:
        """All of them, under their names."""
        return {f"{name}.{key}": a for name, part in self.parts.items() for key, a in part.save().items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Give each its own."""
        for name, part in self.parts.items():
            start = f"{name}."
            part.restore({key.removeprefix(start): a for key, a in state.items() if key.startswith(start)})


@dataclass
class Judge:
    """Evaluates now and then, and keeps the best weights in a file."""

    evaluator: Evaluator
    names: Sequence[str]
    every: int
    best_path: Path | None = None
    best: float = -np.inf

    def __call__(self, iteration: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
        """The mean return after an iteration, or NaN where there is no evaluation."""
        if (int(iteration) + 1) % self.every:
            return np.array(np.nan, np.float32)
        kept = {name: np.asarray(array) for name, array in zip(self.names, arrays, strict=True)}
        score = float(self.evaluator(*parted(kept)).mean())
        if score > self.best:
            self.best = score
            if self.best_path is not None:
                save(kept, self.best_path)
        return np.array(score, np.float32)

    def save(self) -> dict[str, np.ndarray]:
        """The best so far."""
        return {"best": np.array(self.best)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from it."""
        self.best = float(state["best"])


STATISTICS = "statistics."
"""Name prefix of the statistics of normalised observations, beside the weights they belong to."""


def joined(weights: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent is: its weights, and the statistics that its observations are normalised by.

    >>> joined({"w": 1}, {"observation_mean": 2})
    {'w': 1, 'statistics.observation_mean': 2}
    """
    return {**weights, **{f"{STATISTICS}{name}": a for name, a in statistics.items()}}


def parted(arrays: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights and statistics.

    >>> parted({"w": 1, "statistics.observation_mean": 2})
    ({'w': 1}, {'observation_mean': 2})
    """
    found = {name.removeprefix(STATISTICS): a for name, a in arrays.items() if name.startswith(STATISTICS)}
    return {name: a for name, a in arrays.items() if not name.startswith(STATISTICS)}, found


def train(
    algorithm: str,
    environments: Source,
    iterations: int,
    *,
    hidden: Sequence[int] = (64, 64),
    model: Mapping[str, Any] | None = None,
    seed: int = 0,
    log: str | None = None,
    sinks: Sequence[Sink] = (),
    checkpoint: str | None = None,
    every: int = 10,
    evaluation: Source | None = None,
    evaluate_every: int = 10,
    best: str | None = None,
    backend: str = "jax",
    show: Callable[[Row], None] = lambda row: None,
    stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train, and return the figures of all iterations and the last weights.

    `checkpoint` is a folder: a run with a checkpoint in it goes on from there. `show`, a callback, is told the figures
    of each iteration as soon as it is over; what it raises ends the run. `evaluation` are environments of their own, in
    which every so many iterations one greedy episode each is played; `best` is a file for the weights that did best.
    """
    chosen = algorithm_of(algorithm)
    agent = model_for(algorithm, environments, hidden, np.random.default_rng(seed), **(model or {}))
    training = chosen.make(environments, agent, made(chosen.settings, settings))
    figures = {name: tensor for name, tensor in training.outputs.items() if name != "weights"}
    outputs, parts = dict(training.outputs), savable(environments)
    if isinstance(environments, Normalized):
        outputs["statistics"] = environments.final()
    if evaluation is not None:
        after = environments.after() if isinstance(environments, Normalized) else {}
        judged = joined(training.weights, after)
        judge = Judge(
            Evaluator(evaluation, agent, backend=backend),
            list(judged),
            evaluate_every,
            None if best is None else Path(best),
        )
        given = [value(training.i), *judged.values()]
        figures["evaluation"] = host(judge, given, (), "float32", effect="evaluation")
        parts["judge"] = judge
    noted = Log(list(figures), [*([File(log)] if log is not None else []), *sinks], show)
    note = host(noted.note, [value(training.i), *figures.values()], effect="log")
    with quiet():
        program = compile(outputs, training.bounds, effects=[note], backend=backend)
    saved = None
    if checkpoint is not None:
        # Environments first: what is not theirs is refused before the log is written anew.
        outside = Outside(parts | {"log": noted})
        outside.save()  # what cannot be saved is told now, not after some iterations
        # A finished run is extended from the checkpoint before its last, so there is always one.
        often = min(every, max(1, iterations - 1))
        saved = Checkpoints(checkpoint, over=training.i, every=often, outside=outside, stop=stop)
    try:
        result: dict[str, Any] = program(bounds={training.iterations: iterations}, seed=seed, checkpoint=saved)
    finally:
        for sink in noted.sinks:
            sink.close()
    return result


def savable(environments: Source) -> dict[str, Any]:
    """What checkpoints have to keep of environments besides the program."""
    bare = unwrapped(environments)
    return {"environments": bare} if isinstance(bare, Gym) else {}
