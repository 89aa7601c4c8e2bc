"""What an engine is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.llm.model import Model
from polyrhythm.llm.sampling import Sampling
from polyrhythm.llm.serving.drawing import Drawing

Delivery = Callable[[Any], None]
"""Takes the pieces of a sequence as (row, piece), then None, or an error."""


class Busy(Exception):
    """The queue of an engine is full, or it has been closed."""


@dataclass(eq=False)
class Request:
    """A prompt with its options, and where its pieces go. With `work` it asks for what that returns instead."""

    tokens: list[int]
    max_new_tokens: int
    options: Mapping[str, Any]
    deliver: Delivery
    deadline: float = float("inf")
    cancelled: bool = False
    work: Callable[[Model], Any] | None = None
    begun: float = field(default_factory=time.monotonic)
    sampling: Sampling | None = None
    drawings: list[Drawing] | None = None  # what chooses the tokens of each sample in a slot, if the program does not
    reused: int = 0  # tokens of the prompt that were not read again

    @property
    def batched(self) -> bool:
        """Whether the request may share a batch: its tokens do not depend on the rows beside it."""
        return self.work is None and not self.options.get("temperature") and self.options.get("n", 1) == 1

    def late(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.cancelled or time.monotonic() > self.deadline
