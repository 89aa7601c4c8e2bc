"""The text of tokens that come one by one, in pieces that add up to the text of all of them.

What a token reads as depends on its neighbours. A letter may take several tokens, many decoders drop the space that a
text begins with, and the byte tokens of Llama 2, `<0x0A>` for example, are letters only if the whole run of them is
valid. So tokens are read behind some that came before, and their text is held back while a token to come could still
change it. Each token is decoded a few times, however long the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""The name of a token that is one byte."""

NO_LETTER = "\ufffd"
"""What bytes that are no letter, or not yet one, are decoded to."""

TAIL = 4
"""How many tokens are kept to read others behind: enough that one of them has text."""


def continuation(tokenizer: Any, before: Sequence[int], new: Sequence[int]) -> str:
    """What new tokens add to the text of those before.

    If they change that text, by completing a letter for example, it is the text of the new ones alone.
    """
    whole, start = tokenizer.decode([*before, *new]), tokenizer.decode([*before])
    return str(whole[len(start) :] if whole.startswith(start) else tokenizer.decode([*new]))


class Joiner:
    """The text after a prompt, piece by piece.

    >>> from tokenizers import Tokenizer, decoders
    >>> from tokenizers.models import BPE
    >>> tokenizer = Tokenizer(BPE({"a": 0, "_b": 1, "<0xC3>": 2, "<0xA4>": 3}, []))
    >>> tokenizer.decoder = decoders.Sequence(
    ...     [decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ... )
    >>> joiner = Joiner(tokenizer, [0])
    >>> [joiner.add(token) for token in (1, 2, 3, 0)], joiner.add(2, last=True)
    ([' b', '', '', 'äa'], '\ufffd')
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._before = [*prompt]
        self._held: list[int] = []
        self._enough = 0

    def add(self, token: int, last: bool = False) -> str:
        """The text that a token completes; with the last one of a text nothing is held back any more."""
        name = self._tokenizer.id_to_token(token)
        silent = name is None or token in self._special  # a decoder never sees such a token
        if not silent:
            self._held.append(token)
        if not self._held:
            return ""
        if not last and (silent or BYTE.fullmatch(name) or len(self._held) < self._enough):
            return ""
        text = continuation(self._tokenizer, self._before, self._held)
        if not last and (not text or text.endswith(NO_LETTER)):
            # Four bytes make a letter. More is noise, and looked at ever more rarely, so that it costs little.
            self._enough = 2 * len(self._held) - 3
            return ""
        self._before, self._held, self._enough = [*self._before, *self._held][-TAIL:], [], 0
        return text
