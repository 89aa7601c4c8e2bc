"""One decode step of attention, as recurrent tensors: every request has a cache of its own length."""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.language.functions import einsum, exp, matmul, value, where
from polyrhythm.language.index import Bound, Dim, dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor


@dataclass(frozen=True)
class AttentionProgram:
    """The results of all requests and their caches with the new rows, and the dims that a schedule may name."""

    outputs: dict[str, Tensor]
    request: Dim
    kv: Dim
    bounds: dict[str, Bound]


def decode_attention(queries: int, width: int, safe_softmax: bool = True) -> AttentionProgram:
    """The step for `queries` heads that share one head of keys and values.

    `length` counts the rows that each cache has; the new row comes after them. `safe_softmax` subtracts the largest
    score first; without it, exponentials are taken as they are.

    >>> import numpy as np, polyrhythm as pr
    >>> cache, row = np.ones((1, 2, 1), "float32"), np.full((1, 1), 3, "float32")
    >>> given = {"query": cache[:, :1] * 0, "key": cache, "value": cache, "new_key": row, "new_value": row}
    >>> pr.evaluate(decode_attention(1, 1).outputs["output"], given | {"length": np.ones(1, "int32")}).tolist()
    [[[2.0]]]
    """
    request, R = dim("request")
    kv, S = dim("kv")
    query = input("query", (queries, width), (request,))
    key = input("key", (width,), (request, kv))
    cached = input("value", (width,), (request, kv))
    new_key = input("new_key", (width,), (request,))
    new_value = input("new_value", (width,), (request,))
    length = input("length", (), (request,), "int32")

    keys = where(value(kv) == length, new_key, key)
    values = where(value(kv) == length, new_value, cached)
    score = where(value(kv) <= length, matmul(query, keys), float("-inf"))
    weight = exp(score - score[{kv: slice(0, S)}].max(0)) if safe_softmax else exp(score)
    weights = weight[{kv: slice(0, S)}]
    output = einsum("sq,sw->qw", weights, values[{kv: slice(0, S)}]) / weights.sum(0).axes[:, None]
    outputs = {"output": output, "key": keys, "value": values}
    return AttentionProgram(outputs, request, kv, {"request": R, "kv": S})
