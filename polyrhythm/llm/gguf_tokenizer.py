"""Tokenizers from the metadata of GGUF files, built with the `tokenizers` library.

A GGUF file has no `tokenizer.json`. It lists tokens with their types, and either merges (`gpt2`: byte-level BPE) or
scores (`llama`: SentencePiece's BPE, which merges the pair whose result has the best score). How text is split before
merging is only named, in `tokenizer.ggml.pre`; an unknown name is refused, since another split gives other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyrhythm.errors import UnsupportedError
from polyrhythm.extras import needs
from polyrhythm.llm.errors import ModelDamagedError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The types of tokens in `tokenizer.ggml.token_type`."""

WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = rf"{CASED}*{LOWER}+|{CASED}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"{CASED}*{LOWER}+{ENDING}|{CASED}+{LOWER}*{ENDING}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (WORDS,),
    "default": (WORDS,),
    "olmo": (WORDS,),
    "smollm": (r"\p{N}", WORDS),
    "starcoder": (r"\p{N}", WORDS),
    "refact": (r"\p{N}", WORDS),
    "command-r": (r"\p{N}", WORDS),
    "llama-bpe": (LLAMA3,),
    "llama3": (LLAMA3,),
    "llama-v3": (LLAMA3,),
    "dbrx": (LLAMA3,),
    "smaug-bpe": (LLAMA3,),
    "qwen2": (QWEN2,),
    "stablelm2": (QWEN2,),
    "deepseek-r1-qwen": (QWEN2,),
    "tekken": (TEKKEN,),
    "gpt-4o": (GPT4O,),
}
"""What isolates the pieces that merges stay within, one expression after the other."""


def tokenizer_of(metadata: Mapping[str, Any], path: str) -> Any:
    """The tokenizer that a file describes; None if it describes none.

    >>> tokens = ["a", "b", "ab", "<end>"]
    >>> given = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": [1, 1, 1, 3], "merges": ["a b"]}
    >>> made = tokenizer_of({f"tokenizer.ggml.{key}": value for key, value in given.items()}, "m.gguf")
    >>> made.encode("abba<end>").ids
    [2, 1, 0, 3]
    """
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if kind in (None, "none") or tokens is None:
        return None
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise ModelDamagedError(
            f"{path} has {len(tokens)} tokens, but {len(types)} types of tokens", fix="copy the file again"
        )
    if kind == "gpt2":
        made, begins = _byte_level(metadata, tokens, path), False
    elif kind == "llama":
        made, begins = _sentencepiece(metadata, tokens, types, path), True
    else:
        raise UnsupportedError(f"{path} has a tokenizer of type {kind!r}", fix="known: gpt2, llama")
    _add(made, tokens, types)
    _begin(made, metadata, tokens, begins)
    return made


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], path: str) -> Any:
    needs("tokenizers", "llm", "a tokenizer")
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in SPLITS:
        known = ", ".join(SPLITS)
        raise UnsupportedError(f"{path} splits text as {name!r} does, which is not known", fix=f"known: {known}")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
    made = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS[name]]
    spaced = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
    made.decoder = decoders.ByteLevel()
    return made


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], path: str) -> Any:
    needs("tokenizers", "llm", "a tokenizer")
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ModelDamagedError(f"{path} has no score for each of its tokens", fix="copy the file again")
    numbers = {token: number for number, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    merges = _merges([t for t, kind in zip(tokens, types, strict=True) if kind == NORMAL], numbers, scores)
    made = Tokenizer(BPE(numbers, merges, unk_token=unknown, fuse_unk=True, byte_fallback=BYTE in types))
    spaced = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    first = [normalizers.Prepend("▁")] if spaced else []
    made.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    last = [decoders.Strip(" ", 1, 0)] if spaced else []
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    return made


def _merges(tokens: Sequence[str], numbers: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to join two tokens to a third, those with the best result first.

    Pairs with one result are tried in the order of their parts, as SentencePiece does.
    """
    found: list[tuple[float, int, int, str, str]] = []
    for token in tokens:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in numbers and right in numbers:
                found.append((-scores[numbers[token]], numbers[left], numbers[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _add(made: Any, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Tokens that stay whole in any text: those of control, which decoding leaves out, and those of users."""
    from tokenizers import AddedToken

    for kind in (CONTROL, USER_DEFINED):
        own = [token for token, its in zip(tokens, types, strict=True) if its == kind and token]
        added = [AddedToken(token, normalized=False, special=kind == CONTROL) for token in own]
        (made.add_special_tokens if kind == CONTROL else made.add_tokens)(added)


def _begin(made: Any, metadata: Mapping[str, Any], tokens: Sequence[str], default: bool) -> None:
    """Put the first and the last token around every text, where the file asks for it."""
    from tokenizers import processors

    around: list[list[tuple[str, int]]] = []
    for key, asked in (("bos", default), ("eos", False)):
        number = int(metadata.get(f"tokenizer.ggml.{key}_token_id", -1))
        add = metadata.get(f"tokenizer.ggml.add_{key}_token", asked) and number >= 0
        around.append([(tokens[number], number)] if add else [])
    first, last = around
    if first or last:
        single = [*(token for token, _ in first), "$A", *(token for token, _ in last)]
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[*first, *last])
