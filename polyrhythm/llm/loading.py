"""Models from disk: a Hugging Face folder, or a GGUF file. All of it is checked before anything runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.extras import needs
from polyrhythm.language.functions.support import as_dtype
from polyrhythm.llm.adapters import Adapted
from polyrhythm.llm.chat import ChatTemplate, template_of, template_of_metadata
from polyrhythm.llm.checkpoint import Checkpoint, Weights
from polyrhythm.llm.config import Config
from polyrhythm.llm.errors import ModelDamagedError, ModelMismatchError, ModelMissingError
from polyrhythm.llm.families import blank_decoder
from polyrhythm.llm.gguf_file import GGUFFile
from polyrhythm.llm.gguf_tokenizer import tokenizer_of
from polyrhythm.llm.model import Model
from polyrhythm.llm.naming import Tensors, tensors_of
from polyrhythm.llm.parts import Attention
from polyrhythm.llm.patterns import Pattern
from polyrhythm.llm.quantised import Quantised, matrices, per_channel, stacked
from polyrhythm.llm.read_config import as_weights_dtype, config_of, read_config, read_json
from polyrhythm.llm.sharding import spread_weights, weight_specs


def load(
    path: str | os.PathLike[str],
    dtype: Any = None,
    attention: Pattern | None = None,
    backend: str = "jax",
    adapter: str | os.PathLike[str] | None = None,
    kv_dtype: Any = None,
    mesh: Any = None,
) -> Model:
    """The model in a Hugging Face folder or a GGUF file on this machine.

    A folder has `config.json`, weights in safetensors files (one, or several with an index), and, for text,
    `tokenizer.json`. A GGUF file has all of that in one. All of it is checked before anything runs. Weights are
    converted to `dtype`: float32, bfloat16 or float16, by default what the model says; quantised weights then stay as
    they are. With `dtype="int8"` matrices are quantised, with one scale for each row, and the rest is float32.
    `attention` is a pattern (see `polyrhythm.llm.patterns`) instead of the model's own. `adapter` is the folder of a
    LoRA adapter, which is merged into the weights. Keys and values are stored in `kv_dtype`, bfloat16 for
    example, where that is not the dtype of the model; in int8 each vector has a scale. `mesh`, made by `jax.make_mesh`,
    spreads the model over devices: weights over its axis `model`, the sequences of a batch over its axis `data` (see
    `polyrhythm.llm.sharding`).
    """
    to_int8 = isinstance(dtype, str) and dtype == "int8"
    source = _opened(Path(path), "float32" if to_int8 else dtype)
    own = source.weights if adapter is None else Adapted(source.weights, Path(adapter))
    weights, formats = {}, {}
    for name, weight in _weights(own, source.config, keep=dtype is None, to_int8=to_int8):
        if isinstance(weight, Quantised):
            formats[name] = weight.format
            weights.update({key: _placed(array, backend) for key, array in weight.named(name)})
        else:
            weights[name] = _placed(weight, backend)
    if formats and backend == "jax":
        from polyrhythm.compiler.backends.jax.products import build

        build.ahead("packed.c")
    config = replace(source.config, formats=formats, kv_dtype=_kv_dtype(source.config, kv_dtype))
    specs = {} if mesh is None else weight_specs(config, {name: w.shape for name, w in weights.items()}, mesh)
    if mesh is not None:
        weights = spread_weights(weights, specs, mesh)
    return Model(config, weights, source.tokenizer, attention, backend, source.template, mesh, specs)


def _kv_dtype(config: Config, asked: Any) -> np.dtype | None:
    """What keys and values are stored in, if not in the dtype of the model."""
    if asked is None:
        return None
    if not any(isinstance(part, Attention) for _, part in blank_decoder(config).parts()):
        raise UnsupportedError(
            f"kv_dtype for a model of the family {config.family}, which stores no keys and values", fix="leave it out"
        )
    return as_dtype("int8") if as_dtype(asked).name == "int8" else as_weights_dtype(asked)


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The architecture and the sizes of the model in a folder or a file, without reading its weights.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = llm.info(llm.write_random(folder))
    >>> found["family"], found["parameters"], found["layers"]
    ('llama', 107328, 2)
    """
    source = _opened(Path(path), None)
    config = source.config
    files = _files(source.weights, config)
    return {
        "family": config.family,
        "parameters": sum(math.prod(own.shape) * len(own.paths) for own in files.values()),
        "dtype": config.dtype.name,
        "layers": config.layers,
        "width": config.width,
        "attention_heads": config.heads,
        "key_value_heads": config.kv_heads,
        "head_size": config.head_size,
        "vocabulary": config.vocabulary,
        "positions": config.positions,
        "sliding_window": config.window,
        "tied_embeddings": config.tied,
        "tokenizer": source.tokenizer is not None,
        "chat_template": source.template is not None,
        "end_tokens": list(config.ends),
    }


@dataclass(frozen=True)
class _Source:
    """What is on disk, opened and checked, before weights are read."""

    config: Config
    weights: Weights
    tokenizer: Any
    template: ChatTemplate | None


def _opened(path: Path, dtype: Any) -> _Source:
    if path.suffix == ".gguf":
        file = GGUFFile(_there(path))
        _check_sizes(path, file.config(), file)
        config = config_of(path, file.config(), {}, dtype)
        return _Source(config, file, tokenizer_of(file.metadata, str(path)), template_of_metadata(file.metadata))
    given, weights = read_json(_folder(path) / "config.json", needed=True), Checkpoint(path)
    _check_sizes(path / "config.json", given, weights)
    return _Source(read_config(path, dtype), weights, _tokenizer(path), template_of(path))


def _check_sizes(path: Path, given: Mapping[str, Any], weights: Weights) -> None:
    """Refuse sizes that the files cannot hold, before anything of these sizes is made.

    There are no more layers than tensors, and no axis of a weight is longer than the largest tensor has elements.
    """
    names = weights.names()
    largest = max((math.prod(weights.shape(name)) for name in names), default=0)
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        most = len(names) if key in _LAYERS else largest if key in _AXES else value
        if value > most:
            what = f"{len(names)} tensors" if key in _LAYERS else f"tensors of at most {largest:,} elements"
            raise ModelMismatchError(
                f"{path} has {key} = {value:,}, but the weights have {what}",
                fix="take the config.json that belongs to the weights",
            )


_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_AXES = (
    "hidden_size",
    "n_embd",
    "d_model",
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "num_attention_heads",
    "n_head",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
)


def _folder(path: Path) -> Path:
    """A folder that is there."""
    if not path.is_dir():
        raise ModelMissingError(
            f"there is no folder {path}", fix="give the folder of a Hugging Face checkpoint, or a GGUF file"
        )
    return path


def _there(path: Path) -> Path:
    if not path.is_file():
        raise ModelMissingError(f"there is no file {path}", fix="give a GGUF file on this machine")
    return path


def _weights(
    checkpoint: Weights, config: Config, keep: bool, to_int8: bool
) -> Iterator[tuple[str, np.ndarray | Quantised]]:
    """The weights under the names of the program; all are checked before the first is read.

    With `keep` what is quantised in the files stays so; with `to_int8` matrices are quantised.
    """
    files, chosen = _files(checkpoint, config), matrices(blank_decoder(config))
    for name, own in files.items():
        parts = [checkpoint.quantised(checkpoint.local(path)) for path in own.paths] if keep and name in chosen else []
        if parts and all(part is not None for part in parts):
            yield name, stacked([part for part in parts if part is not None], own.leading)
            continue
        array = checkpoint.stacked(list(own.paths), config.dtype).reshape(*own.leading, *own.shape)
        yield name, per_channel(array) if to_int8 and name in chosen else array


def _optional(config: Config) -> frozenset[str]:
    """Weights that files may hold although nothing reads them."""
    return frozenset({"lm_head.weight", "embed_out.weight"} if config.tied else ())


def _files(checkpoint: Weights, config: Config) -> dict[str, Tensors]:
    """For each weight of the program its tensors in a checkpoint. Refuses one that has others."""
    root = blank_decoder(config).layers_at.partition(".")[0] + "."
    prefix = root if checkpoint.lacks(root) else ""
    files = {
        name: replace(own, paths=tuple(path.removeprefix(prefix) for path in own.paths))
        for name, own in tensors_of(config).items()
    }
    checkpoint.check({path: own.shape for own in files.values() for path in own.paths}, _optional(config))
    return files


def _placed(array: np.ndarray, backend: str) -> Any:
    """A weight where the backend computes."""
    if backend == "jax":
        import jax

        return jax.device_put(array)
    return array


def _tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder, if it has one. Every token it makes counts: it neither fills up nor cuts off."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    needs("tokenizers", "llm", "a tokenizer")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ModelDamagedError(f"{path} is not a tokenizer: {error}", fix="copy the file again") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
