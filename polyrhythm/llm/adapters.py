"""LoRA adapters (Hu et al., 2021) in the format of PEFT, merged into the weights as they are read.

A folder has `adapter_config.json` and `adapter_model.safetensors` with a pair of matrices for each adapted weight.
Merged, `weight + scale * B @ A`, they cost nothing when the model runs. What else an adapter asks for is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.checkpoint import Shape, Weights
from polyrhythm.llm.errors import ModelMismatchError, ModelMissingError
from polyrhythm.llm.fields import Fields
from polyrhythm.llm.read_config import read_json
from polyrhythm.nn.files import load

CONFIG, FILE, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
PLAIN = {"use_dora": False, "bias": "none", "fan_in_fan_out": False, "lora_bias": False}
"""What an adapter may say of these."""


class Adapted(Weights):
    """Weights with an adapter merged into them."""

    def __init__(self, weights: Weights, folder: Path) -> None:
        self._weights, self.where, self._folder = weights, weights.where, folder
        if not (folder / FILE).is_file():
            raise ModelMissingError(f"there is no {FILE} in {folder}", fix="give the folder of a LoRA adapter of PEFT")
        fields = Fields(folder / CONFIG, read_json(folder / CONFIG, needed=True))
        fields.known("peft_type", ("LORA",))
        for key, value in PLAIN.items():
            fields.only(key, value)
        for key in ("modules_to_save", "rank_pattern", "alpha_pattern"):
            if fields.get(key):
                raise UnsupportedError(
                    f"{fields.path} has {key} = {fields.get(key)!r}", fix="merge the adapter with PEFT"
                )
        rank = fields.number("r")
        root = rank**0.5 if fields.flag("use_rslora", False) else rank
        self._scale = fields.real("lora_alpha", 8) / root
        self._pairs = _pairs(folder)

    def names(self) -> list[str]:
        return self._weights.names()

    def lacks(self, prefix: str) -> bool:
        return self._weights.lacks(prefix)

    def local(self, name: str) -> str:
        return self._weights.local(name)

    def shape(self, name: str) -> Shape:
        return self._weights.shape(name)

    def check_kind(self, name: str) -> None:
        self._weights.check_kind(name)

    def read(self, name: str) -> np.ndarray:
        result = np.array(self._weights.read(name))
        self._merge(name, result)
        return result

    def read_into(self, name: str, target: np.ndarray) -> None:
        self._weights.read_into(name, target)
        self._merge(name, target)

    def check(self, needed: Mapping[str, Shape], optional: frozenset[str] = frozenset()) -> None:
        super().check(needed, optional)
        own = {self.local(name): shape for name, shape in needed.items()}
        pairs = {self.local(name): pair for name, pair in self._pairs.items()}
        for name, (down, up) in pairs.items():
            shape = own.get(name)
            if shape is None or (up.shape[0], down.shape[1]) != shape or up.shape[1] != down.shape[0]:
                raise ModelMismatchError(
                    f"{self._folder} adapts {name!r} by {up.shape} and {down.shape}, but the model has "
                    + ("no such weight" if shape is None else f"{shape} there"),
                    fix="take the adapter that belongs to the model",
                )
        self._pairs = pairs

    def _merge(self, name: str, target: np.ndarray) -> None:
        if name in self._pairs:
            down, up = (matrix.astype(np.float32) for matrix in self._pairs[name])
            target[...] = target.astype(np.float32) + self._scale * (up @ down)


def _pairs(folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The matrices A (rank, in) and B (out, rank) of each weight, by its name."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, array in load(folder / FILE).items():
        base, _, kind = name.removesuffix(".weight").rpartition(".")
        if not name.startswith(PREFIX) or kind not in ("lora_A", "lora_B"):
            raise UnsupportedError(
                f"{folder / FILE} has {name!r}, which is no matrix of LoRA", fix="merge it with PEFT"
            )
        found.setdefault(base.removeprefix(PREFIX) + ".weight", {})[kind] = array
    for name, pair in found.items():
        if len(pair) != 2:
            raise ModelMismatchError(f"{folder / FILE} has one matrix only for {name!r}", fix="copy the file again")
    return {name: (pair["lora_A"], pair["lora_B"]) for name, pair in found.items()}
