"""GGUF files: the configuration, the weights and the tokenizer of a model in one file, as llama.cpp reads it.

The `gguf` package parses the file, which is mapped into memory. Its metadata becomes the `config.json` that the same
model has as a Hugging Face folder, so everything after that is shared. Tensors of the kinds in `gguf_blocks.py` may
stay quantised; `read` dequantises any.

llama.cpp pairs neighbouring elements in rotary positions where Hugging Face pairs the halves of a head. Files of the
architectures that are `permuted` hold the rows of queries and keys in that order, and reading puts them back. A key of
the metadata that decides what the model computes and is not known is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.checkpoint import Shape, Weights
from polyrhythm.llm.errors import ModelDamagedError, ModelMismatchError
from polyrhythm.llm.gguf_blocks import quantised
from polyrhythm.llm.quantised import Quantised

PLAIN = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""The types of tensors that are not quantised."""

COMMON = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Keys of the metadata, behind the name of the architecture, and their names in config.json."""

CHECKED = frozenset({"rope.dimension_count", "attention.value_length", "rope.scaling.type", "rope.scaling.factor"})
"""Keys that are read apart from the table."""

IGNORED = frozenset({"tensor_data_layout", "rope.scaling.finetuned"})
"""Keys that do not decide what a model computes."""


@dataclass(frozen=True)
class Architecture:
    """How files of one architecture differ from the Hugging Face folder of the same model."""

    model_type: str
    permuted: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    norm_offset: float = 0.0


ARCHITECTURES = {
    "llama": Architecture("llama", permuted=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma": Architecture("gemma", norm_offset=1.0),
    "olmo2": Architecture("olmo2"),
    "granite": Architecture(
        "granite",
        permuted=True,
        keys={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
}
"""By the name in `general.architecture`."""


class GGUFFile(Weights):
    """The weights of a GGUF file under the names of the Hugging Face model."""

    def __init__(self, path: Path) -> None:
        self.where = path
        self._reader = _opened(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        name = self.metadata.get("general.architecture")
        if name not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise UnsupportedError(
                f"{path} has general.architecture = {name!r}, which is not known", fix=f"known: {known}"
            )
        self._architecture, self._prefix = ARCHITECTURES[name], f"{name}."
        self._check_end()

    def _check_end(self) -> None:
        """The mapping of a file that was cut off ends before its last tensor does."""
        ends = [tensor.data_offset + tensor.n_bytes for tensor in self._reader.tensors]
        if ends and max(ends) > self.where.stat().st_size:
            raise _damaged(self.where, "its tensors end after the file does")

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """All of the metadata, by key."""
        return {name: entry.contents() for name, entry in self._reader.fields.items()}

    def config(self) -> dict[str, Any]:
        """What config.json says of the same model."""
        made, prefix = self._architecture, self._prefix
        own = {name.removeprefix(prefix): v for name, v in self.metadata.items() if name.startswith(prefix)}
        names = {**COMMON, **made.keys}
        unknown = sorted(own.keys() - names.keys() - CHECKED - IGNORED)
        if unknown:
            raise UnsupportedError(
                f"{self.where} has {prefix}{unknown[0]} = {own[unknown[0]]!r}, which is not known",
                fix="use the Hugging Face folder of the model",
            )
        given = {"model_type": made.model_type, **made.fixed} | {
            hub: own[name] for name, hub in names.items() if name in own
        }
        given.setdefault("vocab_size", len(self.metadata.get("tokenizer.ggml.tokens", ())))
        given["tie_word_embeddings"] = "output.weight" not in self._tensors
        given["dtype"] = self._dtype()
        given |= {f"{k}_token_id": self.metadata.get(f"tokenizer.ggml.{k}_token_id") for k in ("bos", "eos")}
        ends = {self.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")} - {None}
        given["eos_token_id"] = sorted(ends) or None
        self._check_heads(given, own)
        return given | self._rotary(own)

    def _check_heads(self, given: dict[str, Any], own: Mapping[str, Any]) -> None:
        """Values of another size than keys, or positions for a part of a head, are not known."""
        size = given.get("head_dim") or given["hidden_size"] // given["num_attention_heads"]
        for key in ("rope.dimension_count", "attention.value_length"):
            if own.get(key, size) != size:
                raise UnsupportedError(
                    f"{self.where} has {self._prefix}{key} = {own[key]}, but heads of {size} elements",
                    fix="only files are known where both are the same",
                )

    def _rotary(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """How rotary positions are scaled: by one factor, or by a tensor with a factor for each pair."""
        if "rope_freqs.weight" in self._tensors:
            factors = self._array("rope_freqs.weight").astype(float).tolist()
            return {"rope_scaling": {"rope_type": "factors", "factors": factors}}
        kind = own.get("rope.scaling.type", "none")
        if kind == "none":
            return {}
        return {"rope_scaling": {"rope_type": kind, "factor": own.get("rope.scaling.factor")}}

    def _dtype(self) -> str:
        """The type of most weights; float32 where they are quantised."""
        kinds = [tensor.tensor_type.name for tensor in self._reader.tensors if len(tensor.shape) > 1]
        common = max(set(kinds), key=kinds.count) if kinds else "F32"
        return PLAIN.get(common, "float32")

    def names(self) -> list[str]:
        return sorted(name for name in self._tensors if name != "rope_freqs.weight")

    def lacks(self, prefix: str) -> bool:
        return False

    def local(self, name: str) -> str:
        base, _, suffix = name.rpartition(".")
        found = self._map.get_name(base)
        return name if found is None else f"{found}.{suffix}"

    @cached_property
    def _map(self) -> Any:
        import gguf

        arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if f"{n}." == self._prefix)
        return gguf.get_tensor_name_map(arch, int(self.metadata[f"{self._prefix}block_count"]))

    def shape(self, name: str) -> Shape:
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def check_kind(self, name: str) -> None:
        import gguf

        kind = self._tensors[name].tensor_type
        if kind.name not in PLAIN and kind not in gguf.quants._type_traits:
            raise ModelMismatchError(
                f"{name!r} in {self.where} has elements of {kind.name}, which cannot be dequantised",
                fix="take a file quantised as Q8_0, Q4_0, Q4_1, Q4_K or Q6_K",
            )

    def read(self, name: str) -> np.ndarray:
        array = self._array(name)
        rows = self._rows(name)
        array = array if rows is None else array[rows]
        return array - self._architecture.norm_offset if "norm.weight" in name else array

    def quantised(self, name: str) -> Quantised | None:
        tensor, shape = self._tensors[name], self.shape(name)
        found = quantised(tensor.data, tensor.tensor_type.name, shape[0]) if len(shape) == 2 else None
        rows = self._rows(name)
        return found if found is None or rows is None else found.ordered(rows)

    def _rows(self, name: str) -> np.ndarray | None:
        """The order of a tensor's rows; None is the one they have."""
        if not self._architecture.permuted or not (".attn_q." in name or ".attn_k." in name):
            return None
        key = "attention.head_count" if ".attn_q." in name else "attention.head_count_kv"
        heads = int(self.metadata.get(self._prefix + key, self.metadata[f"{self._prefix}attention.head_count"]))
        return np.arange(self.shape(name)[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)

    def _array(self, name: str) -> np.ndarray:
        import gguf

        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        if kind in PLAIN and kind != "BF16":
            return np.asarray(tensor.data).reshape(self.shape(name))
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(self.shape(name))


def _opened(path: Path) -> Any:
    """The parsed file."""
    try:
        import gguf
    except ImportError:
        raise UnsupportedError(
            "GGUF files need the package gguf", fix='install it: pip install "polyrhythm[llm]"'
        ) from None

    class Reader(gguf.GGUFReader):
        """Reads the same mapping through plain arrays, which are twice as fast to slice as NumPy's mapped ones."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, np.asarray(value) if name == "data" else value)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            """As there, but the elements of a list are read in one go: a vocabulary has some hundred thousand."""
            if raw_type != gguf.GGUFValueType.ARRAY or self.byte_order != "I":
                return super()._get_field_parts(orig_offs, raw_type)
            data: Any = self.data
            number, count = unpack_from("<IQ", data, orig_offs)
            kind, start = gguf.GGUFValueType(number), orig_offs + 12
            types = [gguf.GGUFValueType.ARRAY, *[kind] * (count > 0)]
            scalar = self.gguf_scalar_to_np.get(kind)
            if scalar is not None:
                values = np.frombuffer(data, scalar, count, start)
                return 12 + values.nbytes, [values], [0], types
            if kind != gguf.GGUFValueType.STRING:
                return super()._get_field_parts(orig_offs, raw_type)
            parts, at = [], start
            for _ in range(count):
                end = at + 8 + unpack_from("<Q", data, at)[0]
                parts.append(data[at + 8 : end])
                at = end
            return at - orig_offs, parts, list(range(count)), types

    try:
        return Reader(path)
    except Exception as error:  # the package meets a damaged file with whatever error the bytes lead to
        raise _damaged(path, str(error) or type(error).__name__) from None


def _damaged(path: Path, why: str) -> ModelDamagedError:
    return ModelDamagedError(
        f"{path} is not a whole GGUF file ({path.stat().st_size:,} bytes): {why}",
        fix="copy the file again; it was probably cut off",
    )
