"""Fine-tuning a loaded model by low-rank adapters (LoRA; Hu et al., 2021): the whole training is one program.

The weights of the model stay as they are, quantised ones too. Beside some of its linear layers stand two small
matrices, `A` (rank, in) and `B` (out, rank), whose product is added to what the layer makes; only they are trained, by
AdamW. They are recurrences over the iterations, their gradients and the loss part of the same program. `Adapter.save`
writes them in the format of PEFT, which `llm.load(path, adapter=folder)` reads.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm import optim
from polyrhythm.errors import DeclarationError
from polyrhythm.language.functions import as_tensor, einsum, gather, log_softmax, squeeze
from polyrhythm.language.gradient import grad
from polyrhythm.language.index import Dim, dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor
from polyrhythm.llm.adapters import CONFIG, FILE, PREFIX
from polyrhythm.llm.arguments import whole
from polyrhythm.llm.errors import PromptError
from polyrhythm.llm.model import Model
from polyrhythm.llm.naming import layer_number, tensors_of
from polyrhythm.llm.programs import scores_of
from polyrhythm.nn import Linear, Module
from polyrhythm.nn.files import save
from polyrhythm.runtime.program import Program, compile
from polyrhythm.runtime.settings import quiet

TARGETS = ("q_proj", "v_proj")
"""The layers that are adapted if nothing is said, as in the paper."""


@dataclass(frozen=True)
class Adapter:
    """What fine-tuning has learnt: the loss of each iteration, and `A` and `B` of each adapted weight, by its name."""

    losses: np.ndarray
    matrices: Mapping[str, tuple[np.ndarray, np.ndarray]]
    rank: int
    alpha: float
    targets: tuple[str, ...]
    model: Model
    program: Program

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the adapter in the format of PEFT; returns the folder."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, np.ndarray] = {}
        files = tensors_of(self.model.config)
        for name, (down, up) in self.matrices.items():
            stacked = bool(files[name].leading)
            for number, tensor in enumerate(files[name].paths):
                base = PREFIX + tensor.removesuffix(".weight")
                arrays[f"{base}.lora_A.weight"] = down[number] if stacked else down
                arrays[f"{base}.lora_B.weight"] = up[number] if stacked else up
        save(arrays, path / FILE)
        about = {"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "target_modules": list(self.targets)}
        (path / CONFIG).write_text(json.dumps(about, indent=2), encoding="utf-8")
        return path


class LowRank(Linear):
    """A linear layer with a product of two small matrices beside its weight."""

    def __init__(self, layer: Linear, down: Tensor, up: Tensor, scale: float) -> None:
        self.weight, self.bias, self.scale = layer.weight, layer.bias, scale
        self.down, self.up = down, up

    def __call__(self, x: Any) -> Tensor:
        kind = as_tensor(x).dtype
        inner = einsum("...i,ri->...r", as_tensor(x).cast("float32"), self.down)
        return super().__call__(x) + (einsum("...r,or->...o", inner, self.up) * self.scale).cast(kind)


def fine_tune(
    model: Model,
    tokens: np.ndarray,
    rank: int = 8,
    alpha: float = 16.0,
    targets: Sequence[str] = TARGETS,
    learning_rate: float = 1e-4,
    weight_decay: float = 0.0,
    seed: int = 0,
) -> Adapter:
    """Train low-rank adapters of a model on given text, one batch an iteration.

    `tokens` are (iterations, batch, length): each row is a piece of text, and every token but the first is to be
    predicted from those before it. `targets` are the last parts of the names of the linear layers that are adapted.
    `A` begins with random elements and `B` with zeros, so that training begins at the model as it is.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = llm.load(llm.write_random(folder, num_hidden_layers=1), backend="numpy")
    >>> text = np.tile(np.arange(8), (6, 2, 1))
    >>> adapter = llm.fine_tune(model, text, rank=2, learning_rate=0.02)
    >>> bool(adapter.losses[-1] < adapter.losses[0])
    True
    """
    text = _checked(tokens, model)
    rank = whole(rank, 1, f"a rank of {rank!r}", "give an integer, 1 or more")
    (i, I), (t, T) = dim("i"), dim("t")
    rows = text.shape[1]
    seen, following = (input(name, (rows,), (i, t), "int32") for name in ("seen", "following"))
    rng, starts = np.random.default_rng(seed), {}
    scale, weights = alpha / rank, {}

    def adapted(decoder: Any, layers: Sequence[Dim]) -> Any:
        for name in _names(decoder, targets):
            number = layer_number(name, decoder.layers_at, len(layers))
            over = () if number is None else (layers[number],)
            outer, inner = (int(n) for n in as_tensor(_part(decoder, name).weight).shape)
            for key, shape in ((f"{name}.A", (rank, inner)), (f"{name}.B", (outer, rank))):
                starts[key] = input(key, shape, over)
        weights.update(optim.over(i, starts))
        return _replaced(decoder, "", weights, scale)

    scores, sizes = scores_of(model.config, seen, t, model.pattern, adapted=adapted)
    if not weights:
        raise DeclarationError(f"no linear layer of the model is called {' or '.join(targets)}", fix="name others")
    own = squeeze(gather(log_softmax(scores, -1), following.unsqueeze(-1), -1), -1)
    loss = -own.mean()[i, 0:T].mean(0)
    optim.adamw(i, weights, grad(loss, weights), learning_rate, weight_decay=weight_decay)
    outputs = {"loss": loss[0:I], "weights": {name: _last(weight, i, I) for name, weight in weights.items()}}
    with quiet():
        program = compile(outputs, bounds=sizes, backend=model.backend)
    first = {}
    for name, weight in starts.items():
        shape = (*(_layers(model, name)), *(int(n) for n in weight.shape))
        limit = shape[-1] ** -0.5  # torch's initialisation of a linear layer, as PEFT has it
        first[name] = rng.uniform(-limit, limit, shape) if name.endswith(".A") else np.zeros(shape)
    given: dict[str, Any] = {"seen": text[..., :-1].swapaxes(1, 2), "following": text[..., 1:].swapaxes(1, 2)}
    given |= {**model.weights, **{name: array.astype(np.float32) for name, array in first.items()}}
    results = program(bounds={I: len(text)}, **given)
    found = {name: np.asarray(array) for name, array in results["weights"].items()}
    names = [name.removesuffix(".A") for name in starts if name.endswith(".A")]
    pairs = {name: (found[f"{name}.A"], found[f"{name}.B"]) for name in names}
    return Adapter(np.asarray(results["loss"]), pairs, rank, alpha, tuple(targets), model, program)


def _checked(tokens: np.ndarray, model: Model) -> np.ndarray:
    text = np.asarray(tokens)
    if text.ndim != 3 or text.dtype.kind not in "iu" or 0 in text.shape or text.shape[2] < 2:
        raise PromptError(
            f"text of shape {text.shape} and {text.dtype}",
            fix="give integers (iterations, batch, length), a length of 2 or more",
        )
    if text.min() < 0 or text.max() >= model.config.vocabulary:
        raise PromptError(f"the token {text.max()} or {text.min()}", fix=f"tokens are below {model.config.vocabulary}")
    return text.astype(np.int32)


def _names(decoder: Module, targets: Sequence[str]) -> list[str]:
    """The weights of the linear layers whose name ends so."""
    parts = decoder.parts()
    return [f"{n}.weight" for n, part in parts if isinstance(part, Linear) and n.rpartition(".")[2] in targets]


def _part(decoder: Module, name: str) -> Any:
    return dict(decoder.parts())[name.removesuffix(".weight")]


def _replaced(module: Any, prefix: str, weights: Mapping[str, Tensor], scale: float) -> Any:
    """The module with adapted layers in the place of those that have matrices of their own."""
    changed = copy.copy(module)
    for name, value in vars(module).items():
        path = prefix + name
        if isinstance(value, Linear) and f"{path}.weight.A" in weights:
            adapted = LowRank(value, weights[f"{path}.weight.A"], weights[f"{path}.weight.B"], scale)
            setattr(changed, name, adapted)
        elif isinstance(value, Module):
            setattr(changed, name, _replaced(value, f"{path}.", weights, scale))
        elif isinstance(value, list):
            parts = [_replaced(part, f"{path}.{k}.", weights, scale) for k, part in enumerate(value)]
            setattr(changed, name, parts)
    return changed


def _last(weight: Tensor, i: Dim, I: Any) -> Tensor:
    """The value of a weight after the last iteration, for all layers."""
    layers = {own: slice(0, None) for own in weight.dims if own.symbol is not i.symbol}
    return weight[{i: I, **layers}]


def _layers(model: Model, name: str) -> tuple[int, ...]:
    return tensors_of(model.config)[name.rpartition(".")[0]].leading
