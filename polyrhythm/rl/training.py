"""What the algorithms share: settings, and a run to be compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import maximum
from polyrhythm.language.index import Bound, Dim
from polyrhythm.language.tensor import Tensor
from polyrhythm.optim.states import bound_of
from polyrhythm.rl.running import Source, Steps, episodes, unwrapped
from polyrhythm.rl.settings import Checked


@dataclass(frozen=True)
class OnPolicy(Checked):
    """What there is to choose where an update learns from the steps just made, with customary choices."""

    steps: int = 128
    """Steps of each environment per iteration."""
    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.5


@dataclass(frozen=True)
class OffPolicy(Checked):
    """What there is to choose where actors and critics learn from a replay, with customary choices.

    Steps of the buffer, and those before learning starts, are of all environments together.
    """

    steps: int = 1
    """Steps of each environment per iteration."""
    updates: int = 1
    """Updates per iteration."""
    batch_size: int = 256
    learning_rate: float = 3e-4
    critic_learning_rate: float = 1e-3
    gamma: float = 0.99
    tau: float = 0.005
    """How far the targets move to the critics with each update."""
    buffer_size: int = 100_000
    learning_starts: int = 1_000


@dataclass(frozen=True)
class Training:
    """Tensors to be compiled, and the bounds they need: `pr.compile(training.outputs, bounds=training.bounds)`.

    How many `iterations` there are is a bound of the call. All outputs but the last weights vary along i.
    """

    i: Dim
    iterations: Bound
    outputs: dict[str, Any]
    bounds: dict[Bound, int]
    steps: Steps
    weights: dict[str, Tensor]
    """The weights after each iteration, over i."""
    mesh: Any = None
    """The devices that it is spread over, for `pr.compile(..., mesh=training.mesh)`."""

    @staticmethod
    def of(
        i: Dim,
        t: Dim,
        steps: Steps,
        weights: Mapping[str, Tensor],
        figures: Mapping[str, Tensor],
        bounds: Mapping[Bound, int],
        mesh: Any = None,
    ) -> Training:
        """A run whose weights after each iteration are given, with figures of each and the returns of episodes."""
        iterations, (count, score) = bound_of(i), episodes(i, t, steps)
        outputs: dict[str, Any] = {"return": score, "episodes": count, **figures}
        outputs["weights"] = {name: weight[{i: iterations - 1}] for name, weight in weights.items()}
        return Training(i, iterations, outputs, dict(bounds), steps, dict(weights), mesh)


def mean_of(x: Tensor, weight: Tensor | None) -> Tensor:
    """The mean of rows, or of those of weight 1; 0 if there are none.

    >>> import polyrhythm as pr
    >>> float(pr.evaluate(mean_of(pr.constant([1.0, 5.0]), pr.constant([0.0, 1.0]))))
    5.0
    """
    return x.mean() if weight is None else (x * weight).sum() / maximum(weight.sum(), 1.0)


def check(source: Source, model: Any, kind: str, *parts: str, in_order: bool = False) -> None:
    """Refuse what is not several environments, a model that lacks a part, and one that acts in another space.

    With `in_order` row k of every step has to be of environment k.

    >>> from polyrhythm import rl
    >>> carts = rl.Arrays(rl.CartPole(), 2)
    >>> rl.dqn(carts, rl.ActorCritic(carts.observations, carts.actions))
    Traceback (most recent call last):
    ...
    polyrhythm.errors.DeclarationError: the model, ActorCritic, has no values...
    """
    if not (hasattr(source, "run") and hasattr(source, "count")):
        raise DeclarationError(
            f"{type(source).__name__} is not several environments to act in",
            fix='give rl.Arrays(rl.CartPole(), 8), or rl.Gym(gymnasium.make_vec("CartPole-v1", 8))',
        )
    if in_order and not getattr(unwrapped(source), "in_order", True):
        raise DeclarationError(
            "steps are of whichever environments were ready, but this algorithm follows each of them",
            fix="use one that replays (rl.dqn, rl.sac, rl.td3), or environments that wait: rl.Gym(rl.threaded(...))",
        )
    lacking = [part for part in parts if not hasattr(model, part)]
    if lacking:
        raise DeclarationError(f"the model, {type(model).__name__}, has no {lacking[0]}", fix=f"give {kind}")
    own = getattr(model, "actions", source.actions)
    if own != source.actions:
        raise DeclarationError(
            f"the model acts in {own}, but the environments in {source.actions}",
            fix=f"make {kind} of the environments: observations and actions are theirs",
        )
