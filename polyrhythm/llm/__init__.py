"""Language models from local Hugging Face folders and GGUF files, as recurrences over layers and steps.

`load(path)` gives a `Model` with `generate`, `stream`, `chat` and `logits`. There is no cache anywhere: what attention
reads is an index, and the compiler keeps what that index can still reach.
"""

from polyrhythm.llm.chat import ChatTemplate
from polyrhythm.llm.finetuning import Adapter, fine_tune
from polyrhythm.llm.loading import info, load
from polyrhythm.llm.model import Model
from polyrhythm.llm.patterns import Seen, causal, window
from polyrhythm.llm.random_models import write_random
from polyrhythm.llm.writing import Generated, Piece, TokenLogprob

__all__ = [
    "Adapter",
    "ChatTemplate",
    "Generated",
    "Model",
    "Piece",
    "Seen",
    "TokenLogprob",
    "causal",
    "fine_tune",
    "info",
    "load",
    "window",
    "write_random",
]
