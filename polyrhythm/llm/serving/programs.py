"""The programs of a server: one whose slots go on for ever, and one that reads a part of a prompt for them.

A slot is a row of every value. The program of the slots has a token for each at every step, given or its own, and
knows where the text in each slot began: what earlier texts left there is not seen.

The program that reads makes the keys and values of some tokens after others whose keys and values are given. They are
written to where the slots keep theirs (`Stream.replace`): a text then goes on as if its prompt had gone through its
slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyrhythm.language.functions import arange, argmax, maximum, value, where
from polyrhythm.language.index import Bound, dim
from polyrhythm.language.inputs import input
from polyrhythm.language.recurrent import recurrent
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.config import Config, Kind
from polyrhythm.llm.patterns import Past, since
from polyrhythm.llm.programs import Generating, decoded
from polyrhythm.runtime.program import Program, compile
from polyrhythm.runtime.settings import quiet

FREE = -2
"""The token of a slot in which there is no text."""


def slotted(config: Config, slots: int, context: int, backend: str, **devices: Any) -> Generating:
    """The program of slots in which texts begin and end at steps of their own, each at most `context` long.

    Inputs over t: `given`, the token of each slot, -1 where it is the likeliest, or `FREE`, and `read`, where a text
    begins how many of its tokens are there already, elsewhere -1. The output is the likeliest token after each step.
    What it is chosen from is stored as "scores" until the next step, for a host that chooses otherwise.
    """
    t, T = dim("t")
    given, read = (input(name, (slots,), (t,), "int32") for name in ("given", "read"))
    token, begun = (recurrent((slots,), (t,), "int32", name=name) for name in ("token", "begun"))
    begun[t < 1] = 0
    begun[t >= 1] = where(read >= 0, value(t) - read, begun[t - 1])
    seen, stored = since(begun, t, context), []

    def past(k: Tensor, v: Tensor, kind: Kind) -> None:
        stored.append((k, v))

    model, h, sizes = decoded(config, token, t, None, restricted=seen, positions=value(t) - begun, past=past)
    for number, (k, v) in enumerate(stored):
        k.name, v.name = f"k{number}", f"v{number}"
    free = given == FREE
    scores = recurrent((slots, config.vocabulary), (t,), name="scores")
    scores[t < 1] = model.scores(h)
    scores[t >= 1] = where(free.unsqueeze(-1), scores[t - 1], model.scores(h))
    likeliest = argmax(scores, -1).cast("int32")
    token[t < 1] = maximum(given, 0)
    token[t >= 1] = where(given >= 0, given, where(free, 0, likeliest[t - 1]))
    with quiet():
        return Generating(compile(likeliest, bounds=sizes, backend=backend, **devices), t, T)


Layers = dict[str, np.ndarray]
"""Keys and values of some tokens: (layers, steps, heads, size) for each loop over layers, by name."""


@dataclass(frozen=True)
class Reading:
    """The program that reads a part of a text of at most `context` tokens, and of which shape its layers store."""

    program: Program
    length: Bound
    context: int
    shapes: tuple[tuple[str, tuple[int, ...], np.dtype], ...]

    def nothing(self) -> Layers:
        """The keys and values of a text of no tokens."""
        return {name: np.zeros((shape[0], 0, *shape[1:]), dtype) for name, shape, dtype in self.shapes}

    def __call__(self, tokens: list[int], past: Layers, weights: dict[str, Any]) -> Layers:
        """The keys and values of a text, of which those of the first tokens are given."""
        known = next(iter(past.values())).shape[1]
        new = np.array(tokens[known:], np.int32)
        room = np.zeros(1 << max(4, (len(new) - 1).bit_length()), np.int32)  # few sizes, so few compilations
        room[: len(new)] = new
        missing = ((0, 0), (0, self.context - known), (0, 0), (0, 0))
        before = {f"past_{name}": np.pad(own, missing) for name, own in past.items()}
        read = self.program.compiled.graph.inputs  # the output layer is not
        inputs = {**before, **{name: weight for name, weight in weights.items() if name in read}}
        found = self.program(bounds={self.length: len(room)}, tokens=room, known=known, **inputs)
        return {name: np.concatenate([past[name], np.asarray(found[name])[:, : len(new)]], 1) for name in past}


def reading(config: Config, context: int, backend: str, **devices: Any) -> Reading:
    """The program that reads: inputs `tokens` over s, `known`, how many came before, and what layers store of those.

    The outputs are what layers store of the new ones. Of layers that are one loop there is one array.
    """
    s, S = dim("s")
    tokens, known = input("tokens", (), (s,), "int32"), input("known", (), (), "int32")
    position = known + value(s)
    made: dict[str, Tensor] = {}

    def past(k: Tensor, v: Tensor, kind: Kind) -> Past:
        names = [f"{name}{len(made) // 2}" for name in ("k", "v")]
        made.update(zip(names, (k, v), strict=True))
        before = []
        for name, own in zip(names, (k, v), strict=True):
            layers = tuple(own_dim for own_dim in own.dims if own_dim.symbol is not s.symbol)
            before.append(input(f"past_{name}", (context, *own.shape), layers, own.dtype))
        places = arange(context)
        seen = places < known
        return Past(before[0], before[1], seen if kind.window is None else seen & (places > position - kind.window))

    _, _, sizes = decoded(config, tokens, s, None, positions=position, past=past)
    with quiet():
        program = compile(made, bounds=sizes, backend=backend, **devices)
    nodes = {name: program.compiled.graph.inputs[f"past_{name}"] for name in made}
    shapes = [
        (name, tuple(int(str(n)) for n in (node.dims[0].extent, *node.shape[1:])), node.dtype)
        for name, node in nodes.items()
    ]
    return Reading(program, S, context, tuple(shapes))
