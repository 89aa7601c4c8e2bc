"""Losses: of logits and labels, of probabilities, of distances, and of sequences that are not aligned (CTC).

Each is one number per leading index, or per element where there is no axis of classes, in the dtype of the predictions;
nothing is averaged, so that `.mean()` or a sum over steps says what is meant.
"""

from __future__ import annotations

import math

from polyrhythm.errors import DTypeError, ShapeError
from polyrhythm.language.functions import (
    TensorLike,
    abs,
    arange,
    as_tensor,
    exp,
    full,
    gather,
    log_softmax,
    logsumexp,
    mean,
    pad,
    softplus,
    square,
    squeeze,
    stack,
    sum,
    take,
    unsqueeze,
    value,
    where,
)
from polyrhythm.language.index import Dim, index_of
from polyrhythm.language.recurrent import recurrent
from polyrhythm.language.tensor import Tensor

__all__ = ["binary_cross_entropy", "cross_entropy", "ctc", "huber", "kl_divergence"]


def cross_entropy(
    logits: TensorLike, labels: TensorLike, axis: int = -1, smoothing: float = 0.0, ignore: int | None = None
) -> Tensor:
    """`-log softmax(logits)[label]` along an axis; labels are integers, or probabilities of the shape of the logits.

    With `smoothing` that share of the probability is spread evenly. Where a label is `ignore`, the loss is 0.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.nn.cross_entropy(pr.zeros((2, 4)), pr.constant([0, 3]))).round(4).tolist()
    [1.386299967765808, 1.386299967765808]
    """
    scores, target = log_softmax(logits, axis), as_tensor(labels)
    if target.dtype.kind in "iub":
        chosen = where(target == ignore, 0, target) if ignore is not None else target
        found = -squeeze(gather(scores, unsqueeze(chosen, axis), axis), axis)
    else:
        found = -sum(target * scores, axis)
    if smoothing:
        found = (1 - smoothing) * found - smoothing * mean(scores, axis)
    return found if ignore is None else where(target == ignore, 0, found)


def binary_cross_entropy(logits: TensorLike, labels: TensorLike, weight: TensorLike = 1.0) -> Tensor:
    """`-log sigmoid(logits)` where the label is 1, `-log(1 - sigmoid(logits))` where it is 0, without overflow.

    Labels between 0 and 1 mix both; those that are 1 count `weight` times.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.nn.binary_cross_entropy(pr.constant([0.0, 1000.0]), pr.constant([1.0, 1.0]))).round(4).tolist()
    [0.6930999755859375, 0.0]
    """
    scores, target = as_tensor(logits), as_tensor(labels)
    positive = target.cast(scores.dtype) if target.dtype.kind in "iub" else target
    return weight * positive * softplus(-scores) + (1 - positive) * softplus(scores)


def huber(predictions: TensorLike, targets: TensorLike, delta: float = 1.0) -> Tensor:
    """Half the square of the error up to `delta`, and a straight line beyond (Huber, 1964).

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.nn.huber(pr.constant([0.5, 3.0]), 0.0)).tolist()
    [0.125, 2.5]
    """
    error = as_tensor(predictions) - targets
    size = abs(error)
    return where(size <= delta, 0.5 * square(error), delta * (size - 0.5 * delta))


def kl_divergence(logits: TensorLike, target_logits: TensorLike, axis: int = -1) -> Tensor:
    """How far the distribution q of some logits is from p, that of the target: `sum(p * (log p - log q))`.

    >>> import polyrhythm as pr
    >>> pr.evaluate(pr.nn.kl_divergence(pr.constant([1.0, 2.0]), pr.constant([1.0, 2.0])))
    array(0., dtype=float32)
    """
    q, p = log_softmax(logits, axis), log_softmax(target_logits, axis)
    chance = exp(p)
    never = chance == 0
    return sum(where(never, 0, chance * (where(never, 0, p) - q)), axis)


def ctc(
    t: Dim,
    log_probs: Tensor,
    labels: TensorLike,
    blank: int = 0,
    length: TensorLike | None = None,
    label_length: TensorLike | None = None,
) -> Tensor:
    """The loss of a sequence of labels whose places are not known (Graves et al., 2006): `-log p(labels)`.

    `log_probs` has the logarithms of the probabilities of the classes at each step of t, in its last axis; `labels` are
    integers in their last axis. Leading axes of both are a batch. `length` and `label_length` say how many steps and
    labels count, and default to all.

    >>> import numpy as np
    >>> import polyrhythm as pr
    >>> t, T = pr.dim("t", min=1)
    >>> scores = pr.input("scores", (3,), (t,))
    >>> loss = pr.nn.ctc(t, pr.log_softmax(scores), pr.constant([1, 2]))
    >>> pr.evaluate(loss, {"scores": np.zeros((3, 3))}).round(4)
    np.float32(1.6864)
    """
    chars = as_tensor(labels)
    if t.symbol not in log_probs.symbols:
        raise ShapeError(f"the probabilities do not vary along {t}", fix=f"give them {t} as a dim")
    if chars.dtype.kind not in "iu":
        raise DTypeError(f"labels are integers, not {chars.dtype}", fix='cast them, labels.cast("int32")')
    # Blanks before, between and after the labels; a path may skip one between two different labels.
    count = chars.shape[-1]
    between = stack([full(chars.shape, blank, "int32"), chars.cast("int32")], -1)
    states = _shifted(between.reshape((*chars.shape[:-1], 2 * count)), 0, 1, blank)
    places = arange(2 * count + 1)
    skips = (states != blank) & (states != _before(states, 2, blank)) & (places >= 2)
    emitted = gather(log_probs, states, -1) if chars.rank > 1 else take(log_probs, states, log_probs.rank - 1)
    extents = {span.symbol: index_of(span.extent) for span in emitted.spans}
    alpha = recurrent(emitted.shape, [(dim, extents[dim.symbol]) for dim in emitted.dims], emitted.dtype)
    alpha[{t: 0}] = where(places < 2, emitted, -math.inf)[{t: 0}]
    skip = where(skips, _before(alpha, 2, -math.inf), -math.inf)
    following = logsumexp(stack([alpha, _before(alpha, 1, -math.inf), skip], -1), -1) + emitted[{t: t + 1}]
    if length is not None:
        following = where(unsqueeze(value(t + 1) < as_tensor(length), -1), following, alpha)
    alpha[{t: t + 1}] = following
    last = alpha[{t: extents[t.symbol] - 1}]
    ends = unsqueeze(2 * as_tensor(count if label_length is None else label_length), -1)
    return -logsumexp(where((places == ends) | (places == ends - 1), last, -math.inf), -1)


def _shifted(x: Tensor, before: int, after: int, fill: float) -> Tensor:
    """The last axis with some places more."""
    return pad(x, [(0, 0)] * (x.rank - 1) + [(before, after)], value=fill)


def _before(x: Tensor, places: int, fill: float) -> Tensor:
    """What stands some places before along the last axis."""
    return _shifted(x, places, 0, fill).axes[..., : x.shape[-1]]
