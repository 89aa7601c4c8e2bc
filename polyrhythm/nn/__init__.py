"""Layers: plain classes that hold weights by name and are called on tensors.

A module's weights are arrays under the names torch or Hugging Face give them. `module.parameters()` makes an input of
each, with the array as its stored value, and `module.using(tree)` is the same module with other weights, for example
with weights that an optimiser defines over iterations.

>>> import numpy as np
>>> import polyrhythm as pr
>>> from polyrhythm import nn, optim
>>> i, I = pr.dim("i")
>>> t, T = pr.dim("t")
>>> x, goal = pr.input("x", (2,), (t,)), pr.input("goal", (1,), (t,))
>>> model = nn.Linear(2, 1, rng=np.random.default_rng(0))
>>> weights = optim.over(i, model.parameters())
>>> loss = ((model.using(weights)(x) - goal) ** 2).sum()
>>> state = optim.adam(i, weights, pr.grad(loss, weights), rate=0.1)
>>> program = pr.compile({"loss": loss[:, :].sum(1), "weights": weights}, backend="numpy")
>>> losses = program(x=[[1, 2], [3, 4], [5, 7]], goal=[[9], [1], [5]], bounds={I: 50})["loss"]
>>> bool(losses[-1] < 0.9 * losses[0])
True
"""

from polyrhythm.nn.attention import Attention
from polyrhythm.nn.convolutions import Conv1d, Conv2d
from polyrhythm.nn.files import load, save
from polyrhythm.nn.layers import MLP, Dropout, Embedding, Linear, Sequential
from polyrhythm.nn.losses import binary_cross_entropy, cross_entropy, ctc, huber, kl_divergence
from polyrhythm.nn.module import Module, layered
from polyrhythm.nn.norms import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from polyrhythm.nn.pooling import AdaptiveAvgPool1d, AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d
from polyrhythm.nn.positions import rotary, rotary_speeds
from polyrhythm.nn.recurrent import GRU, LSTM, RNN
from polyrhythm.nn.state_space import StateSpace
from polyrhythm.nn.transformer import Block, GatedMLP

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "RNN",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "Attention",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm",
    "Block",
    "Conv1d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "GatedMLP",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "Module",
    "RMSNorm",
    "Sequential",
    "StateSpace",
    "binary_cross_entropy",
    "cross_entropy",
    "ctc",
    "huber",
    "kl_divergence",
    "layered",
    "load",
    "rotary",
    "rotary_speeds",
    "save",
]
