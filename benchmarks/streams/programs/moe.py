"""A mixture of experts with SwiGLU, as recurrent tensors: each token goes through the experts chosen for it."""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.language.functions import dot, matmul, silu, take
from polyrhythm.language.index import Bound, Dim, dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor


@dataclass(frozen=True)
class MoeProgram:
    """The layer's output over tokens, and the dims that a schedule may name."""

    output: Tensor
    token: Dim
    hidden: Dim
    expert: Dim
    intermediate: Dim
    bounds: dict[str, Bound]


def mixture_of_experts() -> MoeProgram:
    """The layer: `routing` names the experts of every token, `weights` how much each of them counts.

    >>> import numpy as np, polyrhythm as pr
    >>> one = np.ones((1, 1, 1), "float32")
    >>> given = {"tokens": one[0], "routing": np.zeros((1, 1), "int32"), "weights": one[0]}
    >>> pr.evaluate(mixture_of_experts().output, given | {"up": one, "gate": one, "down": one})
    array([[0.7310586]], dtype=float32)
    """
    token, T = dim("token")
    choice, C = dim("choice")
    hidden, H = dim("hidden")
    expert, E = dim("expert")
    inner, F = dim("intermediate")
    tokens = input("tokens", (), (token, hidden))
    routing = input("routing", (), (token, choice), "int32")
    weights = input("weights", (), (token, choice))
    up = input("up", (), (expert, hidden, inner))
    gate = input("gate", (), (expert, hidden, inner))
    down = input("down", (), (expert, inner, hidden))

    x = tokens[token, 0:H]
    gated = silu(dot(x, take(gate[0:E, 0:H], routing, 0)))
    raised = gated * dot(x, take(up[0:E, 0:H], routing, 0))
    lowered = matmul(raised[{inner: slice(0, F)}], take(down[0:E, 0:F, 0:H], routing, 0))
    output = (lowered * weights)[{choice: slice(0, C)}].sum(0)
    bounds = {"token": T, "choice": C, "hidden": H, "expert": E, "intermediate": F}
    return MoeProgram(output, token, hidden, expert, inner, bounds)
