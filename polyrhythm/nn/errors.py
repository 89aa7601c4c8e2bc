"""Errors of weights."""

from __future__ import annotations

from polyrhythm.errors import PolyrhythmError


class WeightsFileError(PolyrhythmError):
    """A file of weights is not there, is cut off, or is no safetensors file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from polyrhythm import nn
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "norm.safetensors"
    >>> nn.LayerNorm(2).save(path)
    >>> whole = path.read_bytes()
    >>> _ = path.write_bytes(whole[:-1])
    >>> nn.load(path)
    Traceback (most recent call last):
    ...
    polyrhythm.nn.errors.WeightsFileError: ...norm.safetensors is not a whole safetensors file (...)...
      at ...
      fix: copy the file again; it was probably cut off

    Copy it again:

    >>> _ = path.write_bytes(whole)
    >>> sorted(nn.load(path))
    ['bias', 'weight']
    >>> folder.cleanup()
    """


class WeightsMismatchError(PolyrhythmError):
    """Weights do not fit the module they are given to: by name, shape or dtype.

    >>> import numpy as np
    >>> from polyrhythm import nn
    >>> nn.Linear(2, 1).using({"weight": np.ones((2, 1)), "bias": np.ones(1)})
    Traceback (most recent call last):
    ...
    polyrhythm.nn.errors.WeightsMismatchError: the weight 'weight' has shape (2, 1), but the module needs (1, 2)
      at ...
      fix: give weights of the shapes in module.weights()

    Weights of linear layers have the outputs first, as in torch:

    >>> layer = nn.Linear(2, 1).using({"weight": np.ones((1, 2)), "bias": np.ones(1)})
    """
