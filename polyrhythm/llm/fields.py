"""The entries of a `config.json`, read by name and checked: nothing in it ends in an error of Python.

The names are those of Hugging Face, in the spellings of its versions 4 and 5. Null means that there is no entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.errors import ModelMismatchError

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a model computes with."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
"""The functions between linear layers: Hugging Face's names and ours."""


class Fields:
    """An object of a JSON file. Every method reads one entry, or refuses it by name."""

    def __init__(self, path: Path, given: Mapping[str, Any]) -> None:
        self.path, self.given = path, given

    def __contains__(self, key: str) -> bool:
        return key in self.given

    def get(self, key: str, default: Any = None) -> Any:
        """The entry as it is, or the default."""
        return default if self.given.get(key) is None else self.given[key]

    def number(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.mismatch(key, value, "a positive integer")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """An integer, 0 or more."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.mismatch(key, value, "an integer, 0 or more")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
            raise self.mismatch(key, value, "a positive number")
        return float(value)

    def optional_real(self, key: str) -> float | None:
        """A positive number, if there is one."""
        return None if self.get(key) is None else self.real(key)

    def reals(self, key: str) -> tuple[float, ...]:
        """A list of positive numbers."""
        value = self.get(key, ())
        if not isinstance(value, list) or not value:
            raise self.mismatch(key, value, "a list of positive numbers")
        return tuple(Fields(self.path, {key: entry}).real(key) for entry in value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.mismatch(key, value, "true or false")
        return value

    def known(self, key: str, known: tuple[str, ...], default: str = "") -> str:
        """One of some strings."""
        value = self.get(key, default)
        if value not in known:
            raise UnsupportedError(
                f"{self.path} has {key} = {value!r}, which is not known", fix=f"known: {', '.join(known)}"
            )
        return str(value)

    def activation(self, key: str, default: str = "silu") -> str:
        """A function between linear layers, by our name for it."""
        return ACTIVATIONS[self.known(key, tuple(ACTIVATIONS), default)]

    def only(self, key: str, value: Any) -> None:
        """Refuse an entry that is there and not this one."""
        if self.get(key, value) != value or type(self.get(key, value)) is not type(value):
            raise UnsupportedError(
                f"{self.path} has {key} = {self.given[key]!r}, which is not known", fix=f"only {value!r} is"
            )

    def inner(self, key: str) -> Fields:
        """An object within this one; empty if there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.mismatch(key, value, "an object")
        return Fields(self.path, value)

    def layer_kinds(self, layers: int, known: tuple[str, ...]) -> tuple[str, ...] | None:
        """The entry `layer_types`: one kind for each layer; None if there is no such entry."""
        value = self.get("layer_types")
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != layers or any(kind not in known for kind in value):
            raise UnsupportedError(
                f"{self.path} has layer_types = {value!r} for {layers} layers, which is not known",
                fix=f"give one for each layer: {', '.join(known)}",
            )
        return tuple(value)

    def mismatch(self, key: str, value: Any, needed: str) -> ModelMismatchError:
        """The error for an entry that no model can have."""
        return ModelMismatchError(
            f"{self.path} has {key} = {value!r}, which must be {needed}",
            fix="take the config.json that belongs to the weights",
        )
