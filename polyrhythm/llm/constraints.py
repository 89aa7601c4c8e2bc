"""Output that must be JSON of a schema: which tokens may follow, decided by llguidance between two steps.

The masks are an input of the program over its steps, given one by one: what may follow depends on what was written. The
library compiles the schema and knows the tokenizer; nothing of a grammar is in the program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.errors import PromptError

Schema = Mapping[str, Any] | str


class Constraint:
    """What a grammar allows after each step, for several sequences that are written together.

    `tables` keeps what the library makes of the tokenizer, which takes longer than a short answer.
    """

    def __init__(
        self, schema: Schema, tokenizer: Any, vocabulary: int, ends: Sequence[int], tables: dict[tuple[int, ...], Any]
    ) -> None:
        try:
            from llguidance import LLMatcher, LLTokenizer
        except ImportError:
            raise UnsupportedError(
                "json_schema needs the package llguidance", fix='install it: pip install "polyrhythm[llm]"'
            ) from None
        if not ends:
            raise PromptError("a model without an end token cannot end JSON", fix="give stop_token_ids")
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if tuple(ends) not in tables:
            tables[tuple(ends)] = LLTokenizer(tokenizer.to_str(), n_vocab=vocabulary, eos_token=list(ends))
        matcher = LLMatcher(tables[tuple(ends)], LLMatcher.grammar_from_json_schema(text))
        if matcher.is_error():
            raise PromptError(f"the JSON schema is not understood: {matcher.get_error()}", fix="correct the schema")
        self._first, self._vocabulary = matcher, vocabulary
        self._end = np.isin(np.arange(vocabulary), ends)

    def masks(self, written: Sequence[list[int]], begun: Sequence[int]) -> Iterator[np.ndarray]:
        """For each step the tokens that each sequence may have there, (sequences, vocabulary).

        `begun` says after how many tokens each begins to write; `written` are the tokens that each has so far, to which
        the caller adds before it asks for the next mask.
        """
        matchers = [self._first.deep_copy() for _ in begun]
        consumed, step = list(begun), 0
        while True:
            if step > max(begun) and max(map(len, written)) < step:
                raise UnsupportedError(
                    "json_schema in a program that chooses several tokens at a time",
                    fix="leave processors that read other steps out",
                )
            allowed = np.ones((len(begun), self._vocabulary), bool)
            for row, (matcher, start) in enumerate(zip(matchers, begun, strict=True)):
                for token in written[row][consumed[row] :]:
                    matcher.consume_token(token)
                    consumed[row] += 1
                if step >= start and matcher.is_stopped():
                    allowed[row] = self._end
                elif step >= start:
                    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
                    allowed[row] = np.unpackbits(bits, bitorder="little")[: self._vocabulary]
            yield allowed
            step += 1
