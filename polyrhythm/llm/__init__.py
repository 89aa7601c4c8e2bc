"""Language models from local Hugging Face folders, as recurrences over layers and steps.

`load(path)` gives a `Model` with `generate`, `stream` and `logits`. There is no cache anywhere: what attention reads is
an index, and the compiler keeps what that index can still reach.
"""

from polyrhythm.llm.model import Generated, Model, Piece, load
from polyrhythm.llm.patterns import Seen, causal, window
from polyrhythm.llm.random_models import write_random

__all__ = ["Generated", "Model", "Piece", "Seen", "causal", "load", "window", "write_random"]
