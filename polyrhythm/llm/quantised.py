"""Weights that stay quantised in memory: small integers, with a scale for each block of them (`pr.dequantize`).

A GGUF file gives them as they are; `llm.load(path, dtype="int8")` makes them, with one scale for each row of a matrix.
The program has an input for the codes under the name of the weight, and others for scales and offsets beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from polyrhythm.compiler.ir.ops.quantised import unpacked
from polyrhythm.language.functions import dequantize
from polyrhythm.language.index import Dim
from polyrhythm.language.inputs import input
from polyrhythm.language.tensor import Tensor
from polyrhythm.nn import Embedding, Linear, Module

SCALES, OFFSETS = ".scales", ".offsets"
"""What the inputs with the scales and offsets of a weight are called, behind its name."""

STEP = 16
"""Rows of so many elements, or a multiple, are quantised on loading: the kernel reads as many codes at a time."""


@dataclass(frozen=True)
class Format:
    """How a weight is quantised: bits of a code, codes of a block, and whether a block has an offset."""

    bits: int
    block: int
    offsets: bool

    def declared(self, name: str, shape: Sequence[int], dims: tuple[Dim, ...], dtype: np.dtype) -> Tensor:
        """The weight as a tensor: inputs for its codes, scales and offsets, dequantized where it is read."""
        *lead, inner = shape
        codes = input(name, (*lead, inner * self.bits // 8), dims, "int8" if self.bits == 8 else "uint8")
        scales, *offsets = [
            input(name + suffix, (*lead, inner // self.block), dims, "float16")
            for suffix in (SCALES, OFFSETS)[: 1 + self.offsets]
        ]
        return dequantize(codes, scales, offsets[0] if offsets else None, dtype)


@dataclass(frozen=True)
class Quantised:
    """A matrix, or a stack of them, as codes, float16 scales, and perhaps float16 offsets."""

    codes: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray | None = None

    @property
    def format(self) -> Format:
        """How it is quantised."""
        bits = 8 if self.codes.dtype == np.int8 else 4
        return Format(bits, self.codes.shape[-1] * 8 // bits // self.scales.shape[-1], self.offsets is not None)

    def ordered(self, rows: np.ndarray) -> Quantised:
        """The matrix with its rows in another order."""
        offsets = None if self.offsets is None else self.offsets[rows]
        return Quantised(self.codes[rows], self.scales[rows], offsets)

    def named(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """Its arrays under the names of the program's inputs."""
        yield name, self.codes
        yield name + SCALES, self.scales
        if self.offsets is not None:
            yield name + OFFSETS, self.offsets

    def as_format(self, wanted: Format) -> Quantised:
        """The same elements in a format that can hold them: of 8 bits, in blocks that divide these, with offsets."""
        if wanted == self.format:
            return self
        own = self.format
        times = own.block // wanted.block
        codes = self.codes if own.bits == 8 else unpacked(self.codes).astype(np.int8)
        offsets = np.zeros_like(self.scales) if self.offsets is None and wanted.offsets else self.offsets
        repeated = None if offsets is None else np.repeat(offsets, times, -1)
        return Quantised(codes, np.repeat(self.scales, times, -1), repeated)


def stacked(parts: Sequence[Quantised], leading: Sequence[int]) -> Quantised:
    """Matrices of one shape as one array, in a format that holds all of them; files mix formats between layers."""
    formats = {part.format for part in parts}
    common = next(iter(formats))
    if len(formats) > 1:
        common = Format(8, gcd(*(f.block for f in formats)), any(f.offsets for f in formats))
    alike = [part.as_format(common) for part in parts]

    def together(arrays: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(arrays).reshape(*leading, *arrays[0].shape)

    offsets = [part.offsets for part in alike if part.offsets is not None]
    return Quantised(
        together([part.codes for part in alike]),
        together([part.scales for part in alike]),
        together(offsets) if offsets else None,
    )


def per_channel(matrix: np.ndarray) -> Quantised:
    """A matrix (..., out, in) in int8, with a scale for each row that makes its largest element 127.

    >>> made = per_channel(np.array([[1.0, -0.5]]))
    >>> made.codes.tolist(), round(float(made.scales[0, 0]) * 127, 2)
    ([[127, -64]], 1.0)
    """
    wide = matrix.astype(np.float32)
    scales = (np.abs(wide).max(-1, keepdims=True) / 127).astype(np.float16)
    steps = np.where(scales > 0, scales, 1).astype(np.float32)
    return Quantised(np.clip(np.rint(wide / steps), -127, 127).astype(np.int8), scales)


def matrices(decoder: Module) -> set[str]:
    """The weights of linear layers and embeddings that can be quantised on loading, by name."""
    found = set()
    for name, part in decoder.parts():
        if isinstance(part, (Linear, Embedding)) and part.weight.shape[-1] % STEP == 0:
            found.add(f"{name}.weight")
    return found


def with_formats(formats: Mapping[str, Format]) -> str:
    """A word for the formats of a model's weights.

    >>> with_formats({"a": Format(8, 64, False), "b": Format(4, 32, True)})
    '4-bit and 8-bit'
    """
    return " and ".join(f"{bits}-bit" for bits in sorted({f.bits for f in formats.values()}))
