"""Models from disk: a Hugging Face folder, or a GGUF file. All of it is checked before anything runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm.llm.adapters import Adapted
from polyrhythm.llm.chat import ChatTemplate, template_of, template_of_metadata
from polyrhythm.llm.checkpoint import Checkpoint, Weights
from polyrhythm.llm.config import Config
from polyrhythm.llm.errors import ModelDamagedError, ModelMissingError
from polyrhythm.llm.families import blank_decoder
from polyrhythm.llm.gguf_file import GGUFFile
from polyrhythm.llm.gguf_tokenizer import tokenizer_of
from polyrhythm.llm.model import Model
from polyrhythm.llm.naming import Tensors, tensors_of
from polyrhythm.llm.patterns import Pattern
from polyrhythm.llm.read_config import config_of, read_config


def load(
    path: str | os.PathLike[str],
    dtype: Any = None,
    attention: Pattern | None = None,
    backend: str = "jax",
    adapter: str | os.PathLike[str] | None = None,
) -> Model:
    """The model in a Hugging Face folder or a GGUF file on this machine.

    A folder has `config.json`, weights in safetensors files (one, or several with an index), and, for text,
    `tokenizer.json`. A GGUF file has all of that in one; quantised weights are dequantised. All of it is checked before
    anything runs. Weights are converted to `dtype`: float32, bfloat16 or float16, by default what the model says.
    `attention` is a pattern (see `polyrhythm.llm.patterns`) instead of the model's own. `adapter` is the folder of a
    LoRA adapter, which is merged into the weights.
    """
    source = _opened(Path(path), dtype)
    own = source.weights if adapter is None else Adapted(source.weights, Path(adapter))
    weights = {name: _placed(array, backend) for name, array in _weights(own, source.config)}
    return Model(source.config, weights, source.tokenizer, attention, backend, source.template)


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
        config = config_of(path, file.config(), {}, dtype)
        return _Source(config, file, tokenizer_of(file.metadata, str(path)), template_of_metadata(file.metadata))
    config = read_config(_folder(path), dtype)
    return _Source(config, Checkpoint(path), _tokenizer(path), template_of(path))


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


def _weights(checkpoint: Weights, config: Config) -> Iterator[tuple[str, np.ndarray]]:
    """The weights under the names of the program; all are checked before the first is read."""
    for name, own in _files(checkpoint, config).items():
        yield name, checkpoint.stacked(list(own.paths), config.dtype).reshape(*own.leading, *own.shape)


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
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ModelDamagedError(f"{path} is not a tokenizer: {error}", fix="copy the file again") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
