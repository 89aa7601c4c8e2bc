"""Group relative policy optimisation (Shao et al., 2024) of a language model from `polyrhythm.llm`.

Each prompt is answered by a group of samples. An answer's advantage is its reward against those of its group, in
deviations, so there is no critic. The update is one program: the log-probabilities of all answers, the clipped loss, a
penalty for leaving the model that training began with, the gradient by every weight, and Adam.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import clip, exp, gather, log_softmax, maximum, minimum, sqrt, where
from polyrhythm.language.gradient import detach, grad
from polyrhythm.language.index import dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.model import Model
from polyrhythm.llm.programs import decoded
from polyrhythm.runtime.program import compile


@dataclass(frozen=True)
class Settings:
    """What there is to choose."""

    group: int = 8
    """Samples per prompt."""
    max_new_tokens: int = 32
    temperature: float = 1.0
    learning_rate: float = 1e-5
    clip_range: float = 0.2
    kl_coef: float = 0.04
    """The weight of the distance from the model that training began with."""
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
    log_prob: Tensor, old: Tensor, reference: Tensor, advantage: Tensor, mask: Tensor, settings: Settings
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
    apart = reference - log_prob
    kl = exp(apart) - apart - 1.0
    each = ((gain - settings.kl_coef * kl) * mask).sum(1) / maximum(mask.sum(1), 1.0)
    return -each.mean()


class GRPO:
    """Trains a model in place of its own weights; `model` is the trained one at any time.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = llm.load(llm.write_random(folder, num_hidden_layers=1, hidden_size=16, intermediate_size=16))
    >>> training = GRPO(model, Settings(group=2, max_new_tokens=3))
    >>> sorted(training.step(["hi"], lambda prompt, answer: float(len(answer.tokens))))
    ['kl', 'length', 'loss', 'reward', 'reward_std']
    """

    def __init__(self, model: Model, settings: Settings = Settings(), seed: int = 0) -> None:  # noqa: B008
        if model.config.formats:
            raise DeclarationError("quantised weights have no gradient", fix="load the model in float32 or bfloat16")
        self.model, self.settings, self.seed = copy.copy(model), settings, seed
        self.reference = model
        self.moments = {name: (np.zeros_like(w), np.zeros_like(w)) for name, w in _arrays(model.weights).items()}
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
        program = self._program(len(texts))
        given = {"tokens": tokens, "mask": mask, "advantage": advantage.astype(np.float32)}
        zero = np.zeros_like(mask)
        found: dict[str, Any] = {}
        reference = old = None
        for _ in range(self.settings.epochs):
            if old is None:
                old = self._run(program, given, zero, zero, self.model.weights)["log_prob"]
                same = self.model.weights is self.reference.weights
                reference = old if same else self._run(program, given, zero, zero, self.reference.weights)["log_prob"]
            found = self._run(program, given, old, reference, self.model.weights)
            self.count += 1
            self.model.weights = dict(found["weights"])
            self.moments = dict(found["moments"])
        return {name: float(found[name]) for name in ("loss", "kl")}

    def _run(self, program: Any, given: dict[str, Any], old: Any, reference: Any, weights: Any) -> dict[str, Any]:
        moments = {f"{k}.{name}": m for name, pair in self.moments.items() for k, m in zip("mv", pair, strict=True)}
        state = {"count": np.float32(self.count + 1), "old": old, "reference": reference}
        found: dict[str, Any] = program(**given, **state, **moments, **weights)
        return found

    def _program(self, batch: int) -> Any:
        """The update from so many texts, of any length."""
        if batch not in self._updates:
            self._updates[batch] = _update(self.model, batch, self.settings)
        return self._updates[batch]


def _update(model: Model, batch: int, settings: Settings) -> Any:
    t, last = dim("t", min=2)
    tokens, mask = input("tokens", (batch,), (t,), "int32"), input("mask", (batch,), (t,))
    old, reference = input("old", (batch,), (t,)), input("reference", (batch,), (t,))
    decoder, h, sizes = decoded(model.config, tokens, t, model.pattern)
    weights = {name: w for name, w in decoder.weights().items() if isinstance(w, Tensor)}
    logits = log_softmax(decoder.scores(h).cast("float32"), -1)
    # What a step says of the next token; the last step has none.
    following = where(t < last - 1, tokens[{t: t + 1}], 0)
    log_prob = gather(logits, following.unsqueeze(-1), -1).axes[..., 0]

    def rows(x: Tensor) -> Tensor:
        return x[{t: slice(0, last)}].T

    loss = answer_loss(rows(log_prob), rows(old), rows(reference), input("advantage", (batch,)), rows(mask), settings)
    apart = rows(detach(reference - log_prob))
    kl = ((exp(apart) - apart - 1.0) * rows(mask)).sum() / maximum(rows(mask).sum(), 1.0)
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
    found = {"weights": outputs, "moments": moments, "loss": loss, "kl": kl, "log_prob": log_prob}
    return compile(found, bounds=sizes, backend=model.backend, progress=False)


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


def _arrays(weights: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(weight) for name, weight in weights.items()}


def _flat(groups: Sequence[Sequence[Any]]) -> list[Any]:
    return [answer for group in groups for answer in group]
