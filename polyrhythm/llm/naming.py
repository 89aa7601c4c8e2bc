"""Which tensors of a checkpoint a weight of the program is made of.

A program has one weight for all layers of a kind, and one for all experts of a layer; files have one for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrhythm.llm.config import Config, stacks
from polyrhythm.llm.families import blank_decoder


@dataclass(frozen=True)
class Tensors:
    """The tensors that a weight is made of, the shape of each, and the axes that they lie along."""

    paths: tuple[str, ...]
    shape: tuple[int, ...]
    leading: tuple[int, ...]


def tensors_of(config: Config) -> dict[str, Tensors]:
    """For each weight of the program its tensors: one for each layer of its kind, and of those one for each expert."""
    decoder, loops = blank_decoder(config), stacks(config.kinds)
    numbers = [range(s.start + n, s.start + s.period * s.repeats, s.period) for s in loops for n in range(s.period)]
    found: dict[str, Tensors] = {}
    for name, blank in decoder.weights().items():
        shape, paths, leading = tuple(blank.shape), [name], tuple[int, ...]()
        number = layer_number(name, decoder.layers_at, len(numbers))
        if number is not None:
            rest = name.removeprefix(decoder.layers_at)
            rest = rest if len(numbers) == 1 else rest.partition(".")[2]
            paths = [f"{decoder.layers_at}{layer}.{rest}" for layer in numbers[number]]
            leading = (len(paths),)
        if ".experts." in name and config.experts is not None and config.experts.form != "clamped":
            count = config.experts.count
            paths = [path.replace(".experts.", f".experts.{n}.") for path in paths for n in range(count)]
            shape, leading = shape[1:], (*leading, count)
        found[name] = Tensors(tuple(paths), shape, leading)
    return found


def layer_number(name: str, layers_at: str, count: int) -> int | None:
    """The number of the layer, among the kinds of layers, that a weight belongs to; None if to none.

    >>> layer_number("layers.mlp.weight", "layers.", 1), layer_number("layers.1.mlp.weight", "layers.", 2)
    (0, 1)
    """
    if not name.startswith(layers_at):
        return None
    return 0 if count == 1 else int(name.removeprefix(layers_at).partition(".")[0])
