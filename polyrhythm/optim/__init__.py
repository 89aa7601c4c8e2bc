"""Optimisers as recurrences over the iteration dim.

A training run is a program like any other: parameters are tensors over `((i, I + 1),)`, one value before each of the I
steps and one after the last, and an optimiser defines `p[i + 1]` from p and the gradient of a loss.

>>> import polyrhythm as pr
>>> from polyrhythm import optim
>>> i, I = pr.dim("i")
>>> params = optim.over(i, {"w": 1.0, "b": 0.0})
>>> loss = (params["w"] * 2.0 + params["b"] - 4.0) ** 2
>>> state = optim.sgd(i, params, pr.grad(loss, params), rate=0.125)
>>> pr.evaluate((params["w"], loss), bounds={I: 3})[0].tolist()
[1.0, 2.0, 1.75, 1.8125]
"""

from polyrhythm.optim.clipping import clip_by_global_norm, global_norm
from polyrhythm.optim.foreign import optax
from polyrhythm.optim.schedules import cosine, exponential, linear, staircase, warmup
from polyrhythm.optim.states import over
from polyrhythm.optim.updates import adam, adamw, lamb, lion, rmsprop, sgd

__all__ = [
    "adam",
    "adamw",
    "clip_by_global_norm",
    "cosine",
    "exponential",
    "global_norm",
    "lamb",
    "linear",
    "lion",
    "optax",
    "over",
    "rmsprop",
    "sgd",
    "staircase",
    "warmup",
]
