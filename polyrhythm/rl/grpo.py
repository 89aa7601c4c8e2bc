"""Group relative policy optimisation (Shao et al., 2024) of a language model from `polyrhythm.llm`.

Each prompt is answered by a group of samples. An answer's advantage is its reward against those of its group, in
deviations, so there is no critic. The update is one program: the log-probabilities of all answers, the clipped loss, a
penalty for leaving the model that training began with, the gradient by every weight, and Adam. Probabilities are those
of the temperature that answers are drawn with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import clip, exp, gather, log_softmax, maximum, minimum, sqrt, where
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import Bound, Dim, dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.model import Model
from polyrhythm.llm.programs import decoded
from polyrhythm.nn.files import load, save
from polyrhythm.optim.states import bound_of
from polyrhythm.rl.settings import Checked
from polyrhythm.runtime.errors import CheckpointMismatchError
from polyrhythm.runtime.program import compile
from polyrhythm.runtime.settings import quiet


@dataclass(frozen=True)
class Settings(Checked):
    """What there is to choose."""

    group: int = 8
    """Samples per prompt."""
    max_new_tokens: int = 32
    temperature: float = 1.0
    learning_rate: float = 1e-5
    clip_range: float = 0.2
    kl_coef: float = 0.04
    """The weight of the distance from the model that training began with; 0 leaves that model out."""
    epochs: int = 1
    """Updates from each batch of answers."""
    max_grad_norm: float = 1.0


def advantages(rewards: np.ndarray) -> np.ndarray:
    """Rewards (prompts, group) against the mean of their group, in deviations of it.

    >>> advantages(np.array([[0.0, 2.0], [1.0, 1.0]])).round(3).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    centred = rewards - rewards.mean(1, keepdims=True)
    return np.asarray(centred / (rewards.std(1, keepdims=True) + 1e-6), np.float32)


def answer_loss(
    log_prob: Tensor, old: Tensor, reference: Tensor | None, advantage: Tensor, mask: Tensor, settings: Settings
) -> Tensor:
    """The loss of answers (answers, steps): the mean over answers of the mean over their tokens.

    >>> import polyrhythm as pr
    >>> zero, one = pr.zeros((2, 3)), pr.ones((2, 3))
    >>> float(pr.evaluate(answer_loss(zero, zero, zero, pr.constant([1.0, 3.0]), one, Settings())))
    -2.0
    """
    ratio = exp(log_prob - old)
    advantage = advantage.axes[:, None]
    near = clip(ratio, 1.0 - settings.clip_range, 1.0 + settings.clip_range)
    gain = minimum(ratio * advantage, near * advantage)
    if reference is not None:
        gain = gain - settings.kl_coef * _apart(log_prob, reference)
    each = (gain * mask).sum(1) / maximum(mask.sum(1), 1.0)
    return -each.mean()


def _apart(log_prob: Tensor, reference: Tensor) -> Tensor:
    """An estimate of the KL divergence from the reference that is never negative."""
    ratio = reference - log_prob
    return exp(ratio) - ratio - 1.0


class GRPO:
    """Trains a model in place of its own weights; `model` is the trained one at any time.

    `trained` says by their names which weights are updated, all without it; only these have moments.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = llm.write_random(folder, num_hidden_layers=1, hidden_size=16, intermediate_size=16)
    ...     model = llm.load(path, backend="numpy")
    >>> training = GRPO(model, Settings(group=2, max_new_tokens=3))
    >>> sorted(training.step(["hi"], lambda prompt, answer: float(len(answer.tokens))))
    ['kl', 'length', 'loss', 'reward', 'reward_std']
    """

    def __init__(
        self,
        model: Model,
        settings: Settings = Settings(),  # noqa: B008 (it is frozen)
        seed: int = 0,
        trained: Callable[[str], bool] = lambda name: True,
    ) -> None:
        if model.config.formats:
            raise DeclarationError("quantised weights have no gradient", fix="load the model in float32 or bfloat16")
        if settings.group < 2:
            raise DeclarationError(
                f"answers in groups of {settings.group} have no advantage over each other",
                fix="draw two or more answers to each prompt",
            )
        self.model, self.settings, self.seed = copy.copy(model), settings, seed
        self.reference = model
        chosen = {name: np.asarray(w) for name, w in model.weights.items() if trained(name)}
        if not chosen:
            raise DeclarationError("no weight is trained", fix=f"there are {', '.join(sorted(model.weights)[:3])}, ...")
        self.moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in chosen.items()}
        self.count = 0
        self._updates: dict[int, Any] = {}

    def step(self, prompts: Sequence[Any], reward: Callable[[Any, Any], float]) -> dict[str, float]:
        """Answer all prompts, judge the answers by `reward(prompt, answer)`, and learn from them."""
        settings, self.seed = self.settings, self.seed + 1
        options: dict[str, Any] = {"temperature": settings.temperature, "n": settings.group, "seed": self.seed}
        answers = self.model.generate(list(prompts), settings.max_new_tokens, **options)
        rewards = np.array([[reward(p, a) for a in group] for p, group in zip(prompts, answers, strict=True)])
        starts = [row for row in self.model.reader.rows(list(prompts))[0] for _ in range(settings.group)]
        texts = [np.concatenate([row, a.tokens]) for row, a in zip(starts, _flat(answers), strict=True)]
        found = self.learn(texts, [len(row) for row in starts], advantages(rewards).ravel())
        lengths = [len(answer.tokens) for answer in _flat(answers)]
        figures = {"reward": float(rewards.mean()), "reward_std": float(rewards.std())}
        return figures | {"length": float(np.mean(lengths)), **found}

    def learn(self, texts: Sequence[np.ndarray], starts: Sequence[int], advantage: np.ndarray) -> dict[str, float]:
        """Updates from texts, each of which is an answer from its start on."""
        longest = max(map(len, texts))
        tokens, mask = np.zeros((longest, len(texts)), np.int32), np.zeros((longest, len(texts)), np.float32)
        for number, (text, start) in enumerate(zip(texts, starts, strict=True)):
            tokens[: len(text), number] = text
            mask[start - 1 : len(text) - 1, number] = 1.0  # a token is chosen by the step before it
        judging, update = self._programs(len(texts))
        given: dict[str, Any] = {"mask": mask, "advantage": advantage.astype(np.float32)}
        if self.settings.kl_coef:
            given["reference"] = judging(tokens=tokens, **self.reference.weights)
        if self.settings.epochs > 1:
            given["old"] = judging(tokens=tokens, **self.model.weights)
        found: dict[str, Any] = {}
        for _ in range(self.settings.epochs):
            self.count += 1
            moments = {f"{k}.{name}": m for name, pair in self.moments.items() for k, m in zip("mv", pair, strict=True)}
            count = np.float32(self.count)
            found = update(tokens=tokens, count=count, **given, **moments, **self.model.weights)
            self.model.weights = {**self.model.weights, **found["weights"]}
            self.moments = dict(found["moments"])
        return {name: float(found[name]) for name in ("loss", "kl") if name in found}

    def save(self, path: str | Path) -> None:
        """Weights, moments and counters, from which another `GRPO` of the same model goes on."""
        arrays = {f"weights.{name}": np.asarray(self.model.weights[name]) for name in self.moments}
        for k, kind in enumerate("mv"):
            arrays |= {f"{kind}.{name}": np.asarray(pair[k]) for name, pair in self.moments.items()}
        save(arrays | {"count": np.array(self.count), "seed": np.array(self.seed)}, path)

    def restore(self, path: str | Path) -> None:
        """Go on from what `save` wrote."""
        arrays = load(path)
        names = list(self.moments)
        wanted = {f"{kind}.{name}" for kind in ("weights", "m", "v") for name in names} | {"count", "seed"}
        if set(arrays) != wanted or any(arrays[f"m.{n}"].shape != self.moments[n][0].shape for n in names):
            raise CheckpointMismatchError(
                f"{path} is not of this model", fix="give another file, or load the model that it was saved with"
            )
        self.model.weights = {**self.model.weights, **{name: arrays[f"weights.{name}"] for name in names}}
        self.moments = {name: (arrays[f"m.{name}"], arrays[f"v.{name}"]) for name in names}
        self.count, self.seed = int(arrays["count"]), int(arrays["seed"])

    def _programs(self, batch: int) -> Any:
        """The log-probabilities of so many texts of any length, and the update from them."""
        if batch not in self._updates:
            update = _update(self.model, batch, self.settings, list(self.moments))
            self._updates[batch] = _judging(self.model, batch, self.settings), update
        return self._updates[batch]


def _texts(model: Model, batch: int, settings: Settings) -> tuple[Dim, Any, Tensor, dict[Bound, int]]:
    """Steps, the decoder, how likely each token makes the next, and the sizes of the loops over layers."""
    t, last = dim("t", min=2)
    tokens = input("tokens", (batch,), (t,), "int32")
    decoder, h, sizes = decoded(model.config, tokens, t, model.pattern)
    logits = log_softmax(decoder.scores(h).cast("float32") / settings.temperature, -1)
    # What a step says of the next token; the last step has none.
    following = where(t < last - 1, tokens[{t: t + 1}], 0)
    return t, decoder, gather(logits, following.unsqueeze(-1), -1).axes[..., 0], sizes


def _judging(model: Model, batch: int, settings: Settings) -> Any:
    _, _, log_prob, sizes = _texts(model, batch, settings)
    with quiet():
        return compile(log_prob, bounds=sizes, backend=model.backend)


def _update(model: Model, batch: int, settings: Settings, trained: Sequence[str]) -> Any:
    t, decoder, log_prob, sizes = _texts(model, batch, settings)
    last = bound_of(t)
    mask = input("mask", (batch,), (t,))
    reference = input("reference", (batch,), (t,)) if settings.kl_coef else None
    # With one update the answers are those of the model that is updated.
    old = detach(log_prob) if settings.epochs == 1 else input("old", (batch,), (t,))
    weights = {name: w for name, w in decoder.weights().items() if name in trained}

    def rows(x: Tensor) -> Tensor:
        return x[{t: slice(0, last)}].T

    far, found = None, {}
    if reference is not None:
        far = rows(reference)
        found["kl"] = (_apart(rows(detach(log_prob)), far) * rows(mask)).sum() / maximum(rows(mask).sum(), 1.0)
    loss = answer_loss(rows(log_prob), rows(old), far, input("advantage", (batch,)), rows(mask), settings)
    gradients = grad(loss, weights)
    norm = sqrt(_total((_over_layers(g * g)) for g in gradients.values()))
    scale = minimum(1.0, settings.max_grad_norm / maximum(norm, 1e-9))
    count, outputs = input("count", ()), {}
    moments = {}
    for name, weight in weights.items():
        g = gradients[name] * scale
        m, v = (input(f"{k}.{name}", weight.shape, weight.dims, weight.dtype) for k in "mv")
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = (m / (1.0 - 0.9**count)) / (sqrt(v / (1.0 - 0.999**count)) + 1e-8)
        outputs[name], moments[name] = weight - settings.learning_rate * step, (m, v)
    everything = {**found, "loss": loss, "weights": outputs, "moments": moments}
    with quiet():
        return compile(everything, bounds=sizes, backend=model.backend)


def _over_layers(x: Tensor) -> Tensor:
    """The sum of everything, over the dims of layers too."""
    for own in x.dims:
        x = x[{own: slice(0, None)}]
    return x.sum()


def _total(parts: Iterable[Tensor]) -> Tensor:
    first, *rest = parts
    for part in rest:
        first = first + part
    return first


def _flat(groups: Sequence[Sequence[Any]]) -> list[Any]:
    return [answer for group in groups for answer in group]
