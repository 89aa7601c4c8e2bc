"""Text that comes in pieces is the text of all tokens, for tokenizers of bytes and for those of Llama 2 and Mistral."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from polyrhythm import llm
from polyrhythm.llm.joining import Joiner, continuation
from polyrhythm.llm.random_models import _tokenizer

TEXT = "so it was\n\nnaïve  你好, 🙂🙂 and then"


def of_bytes() -> Any:
    """The tokenizer of random models: a token for each byte, and two special ones."""
    return Tokenizer.from_str(json.dumps(_tokenizer(260)))


def of_words() -> Any:
    """A tokenizer as that of Llama 2: words with their space, letters, and bytes for everything else."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehinostvw,", "▁a", "▁th"]
    names += ["en", "▁▁", "▁t"]
    merges = [("▁", "a"), ("▁", "t"), ("▁t", "h"), ("e", "n"), ("▁", "▁")]
    model = BPE({name: n for n, name in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(names[:3])
    return tokenizer


TOKENIZERS = {"bytes": of_bytes, "words": of_words}


def pieces(tokenizer: Any, prompt: list[int], new: list[int]) -> list[str]:
    joiner = Joiner(tokenizer, prompt)
    return [joiner.add(token, last=number == len(new) - 1) for number, token in enumerate(new)]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_text_goes_on_where_its_prompt_ended(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    tokens = tokenizer.encode(TEXT).ids
    assert tokenizer.decode(tokens) == TEXT
    for length in range(1, len(tokens)):
        prompt, new = tokens[:length], tokens[length:]
        given = tokenizer.decode(prompt)
        if "\ufffd" not in given:  # otherwise the prompt ends inside a letter
            assert given + continuation(tokenizer, prompt, new) == TEXT
            assert given + "".join(pieces(tokenizer, prompt, new)) == TEXT


def test_the_space_between_prompt_and_text_is_kept() -> None:
    tokenizer = of_words()
    prompt, new = tokenizer.encode("so").ids, [tokenizer.token_to_id("▁th"), tokenizer.token_to_id("en")]
    assert tokenizer.decode(new) == "then"
    assert continuation(tokenizer, prompt, new) == " then"
    assert pieces(tokenizer, prompt, new) == [" th", "en"]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_of_random_tokens_add_up(kind: str) -> None:
    """Most of them are no text: letters are begun and not ended, and special tokens stand anywhere."""
    tokenizer, rng = TOKENIZERS[kind](), np.random.default_rng(0)
    count = tokenizer.get_vocab_size()
    # Half of them bytes of letters that are not ASCII, and some tokens that the tokenizer does not have.
    high = [n for n in range(count) if "\ufffd" in tokenizer.decode([n])]
    for _ in range(500):
        drawn = np.where(rng.random(60) < 0.5, rng.choice(high, 60), rng.integers(0, count + 3, 60)).tolist()
        length = int(rng.integers(1, 12))
        prompt, new = drawn[:length], drawn[length : int(rng.integers(length + 1, 60))]
        assert "".join(pieces(tokenizer, prompt, new)) == continuation(tokenizer, prompt, new)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_of_text_come_soon(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    tokens = tokenizer.encode("so it was").ids
    found = pieces(tokenizer, tokens[:1], tokens[1:])
    assert all(found)


@pytest.mark.parametrize("name", ["<0x0A>", "<0xF0>", "a"])
def test_bytes_that_turn_out_to_be_no_letter(name: str) -> None:
    """One byte that is a letter by itself, one that is none, and another token."""
    tokenizer = of_words()
    tokens = [tokenizer.token_to_id(other) for other in ("<0x0A>", "<0xF0>", name)]
    expected = {"<0x0A>": "\ufffd" * 3, "<0xF0>": "\ufffd" * 3, "a": "\ufffd\ufffda"}[name]
    assert "".join(pieces(tokenizer, [1], tokens)) == expected


def test_a_text_that_ends_inside_a_letter_is_given_whole() -> None:
    tokenizer = of_bytes()
    prompt, new = tokenizer.encode("a").ids, tokenizer.encode("b你").ids[:-1]
    assert "".join(pieces(tokenizer, prompt, new)) == "b\ufffd"
    assert "".join(pieces(tokenizer, prompt, [*new, tokenizer.token_to_id("<end>")])) == "b\ufffd"


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("noise", [True, False])
def test_joining_takes_time_as_the_text_is_long(kind: str, noise: bool) -> None:
    tokenizer = TOKENIZERS[kind]()
    seen: list[int] = []

    class Counting:
        get_added_tokens_decoder, id_to_token = tokenizer.get_added_tokens_decoder, tokenizer.id_to_token

        def decode(self, tokens: list[int]) -> str:
            seen.append(len(tokens))
            return str(tokenizer.decode(tokens))

    byte = next(n for n in range(260) if tokenizer.decode([n]) == "\ufffd")
    new = [byte if noise else tokenizer.encode("a").ids[-1]] * 2000
    assert "".join(pieces(Counting(), [5], new)) == continuation(tokenizer, [5], new)
    assert sum(seen) < 12 * len(new)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_stream_adds_up_to_what_is_generated(kind: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[kind]()
    folder = llm.write_random(
        tmp_path, vocab_size=tokenizer.get_vocab_size(), num_hidden_layers=1, hidden_size=16, eos_token_id=[7, 8, 9]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    model = llm.load(folder, backend="numpy")
    prompts = ["so it", "a"]
    expected = model.generate(prompts, 20, temperature=1.0)
    texts = ["", ""]
    for both in model.stream(prompts, 20, temperature=1.0):
        texts = [text + (piece.text if piece else "") for text, piece in zip(texts, both, strict=True)]
    assert texts == [one.text for one in expected]
    for prompt, one in zip(prompts, expected, strict=True):
        tokens = model.tokenizer.encode(prompt).ids + one.tokens.tolist()
        assert prompt + (one.text or "") == model.tokenizer.decode(tokens)


def test_a_tokenizer_neither_fills_up_nor_cuts_off(tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path, num_hidden_layers=1, hidden_size=16)
    tokenizer = of_bytes()
    expected = tokenizer.encode("a longer text").ids
    tokenizer.enable_padding(length=32, pad_id=257, pad_token="<end>")
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert {"padding", "truncation"} <= {key for key, value in json.loads(tokenizer.to_str()).items() if value}
    assert llm.load(folder, backend="numpy").tokenizer.encode("a longer text").ids == expected
