"""Errors of language models: their files, their prompts and their context."""

from __future__ import annotations

from polyrhythm.errors import PolyrhythmError


class ModelMissingError(PolyrhythmError):
    """A file of a language model is not there.

    A folder has `config.json`, weights in `model.safetensors`, or in several files that `model.safetensors.index.json`
    names, and `tokenizer.json` if it is to read and write text.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = llm.write_random(folder.name)
    >>> _ = (path / "model.safetensors").rename(path / "weights.safetensors")
    >>> llm.load(path)
    Traceback (most recent call last):
    ...
    polyrhythm.llm.errors.ModelMissingError: there are no weights in ...: neither model.safetensors nor ...
      at ...
      fix: ...

    Give the file the name it is looked for by:

    >>> _ = (path / "weights.safetensors").rename(path / "model.safetensors")
    >>> llm.load(path).config.layers
    2
    >>> folder.cleanup()
    """


class ModelDamagedError(PolyrhythmError):
    """A file of a language model is cut off, or is not what its name says.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> weights = llm.write_random(folder.name) / "model.safetensors"
    >>> whole = weights.read_bytes()
    >>> _ = weights.write_bytes(whole[:1000])
    >>> llm.load(folder.name)
    Traceback (most recent call last):
    ...
    polyrhythm.llm.errors.ModelDamagedError: ...model.safetensors is not a whole safetensors file (1,000 bytes): ...
      at ...
      fix: copy the file again; it was probably cut off

    Copy it again:

    >>> _ = weights.write_bytes(whole)
    >>> llm.load(folder.name).config.layers
    2
    >>> folder.cleanup()
    """


class ModelMismatchError(PolyrhythmError):
    """The files of a language model do not belong together.

    The weights `config.json` calls for are compared with those in the files, by name and shape, before any is read.

    >>> import json, tempfile
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = llm.write_random(folder.name) / "config.json"
    >>> config = json.loads(path.read_text())
    >>> _ = path.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    >>> llm.load(folder.name)
    Traceback (most recent call last):
    ...
    polyrhythm.llm.errors.ModelMismatchError: the weights in ... are not those of its configuration: missing ...
      at ...
      fix: take the config.json that belongs to the weights

    Take the configuration of these weights:

    >>> _ = path.write_text(json.dumps(config))
    >>> llm.load(folder.name).config.layers
    2
    >>> folder.cleanup()
    """


class ContextLengthError(PolyrhythmError):
    """A text would be longer than the positions a language model has learnt.

    GPT-2 has a vector for each position, and none beyond the last. Models with rotary positions have no such end.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> model = llm.load(llm.write_random(folder.name, "gpt2", n_positions=8), backend="numpy")
    >>> model.generate([1, 2, 3], max_new_tokens=100)
    Traceback (most recent call last):
    ...
    polyrhythm.llm.errors.ContextLengthError: the text would have 103 tokens, but the model has 8 positions
      at ...
      fix: shorten the prompt or ask for fewer tokens

    Ask for fewer tokens:

    >>> len(model.generate([1, 2, 3], max_new_tokens=5).tokens)
    5
    >>> folder.cleanup()
    """


class PromptError(PolyrhythmError):
    """Something a language model cannot go on from: a prompt, a number of tokens or a way of choosing them.

    >>> import tempfile
    >>> from polyrhythm import llm
    >>> folder = tempfile.TemporaryDirectory()
    >>> model = llm.load(llm.write_random(folder.name), backend="numpy")
    >>> model.generate([1, 2, 777], max_new_tokens=2)
    Traceback (most recent call last):
    ...
    polyrhythm.llm.errors.PromptError: the token 777 is not one of the 260 that the model knows
      at ...
      fix: give the tokens of the model's own tokenizer

    Give tokens of the model's vocabulary:

    >>> len(model.generate([1, 2, 7], max_new_tokens=2).tokens)
    2
    >>> folder.cleanup()
    """
