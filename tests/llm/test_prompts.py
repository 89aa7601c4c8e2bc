"""What tokenizers return is read by its tokens; what is no prompt is refused, never read by its keys."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from polyrhythm import llm
from polyrhythm.llm.errors import PromptError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    return llm.load(llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1), backend="numpy")


def rows(model: llm.Model, prompts: Any) -> tuple[list[list[int]], bool]:
    found, alone = model.reader.rows(prompts)
    return [row.tolist() for row in found], alone


def test_what_a_tokenizer_of_transformers_returns(model: llm.Model) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model.tokenizer, pad_token="<end>")
    one, other = model.tokenizer.encode("hi").ids, model.tokenizer.encode("hello").ids
    assert rows(model, tokenizer("hi")) == ([one], True)
    assert rows(model, tokenizer("hi", return_tensors="pt")) == ([one], False)
    assert rows(model, tokenizer(["hi", "hello"])) == ([one, other], False)
    for side in ("left", "right"):
        tokenizer.padding_side = side
        padded = tokenizer(["hi", "hello"], padding=True, return_tensors="np")
        assert padded["input_ids"].shape == (2, len(other))
        assert rows(model, padded) == ([one, other], False)
    assert model.generate(tokenizer("hi"), 4).tokens.tolist() == model.generate(one, 4).tokens.tolist()
    assert rows(model, [tokenizer("hi"), tokenizer("hello")]) == ([one, other], False)


def test_mappings_by_their_tokens(model: llm.Model) -> None:
    assert rows(model, {"input_ids": [1, 2]}) == ([[1, 2]], True)
    assert rows(model, UserDict(input_ids=np.array([[1, 2], [3, 4]]))) == ([[1, 2], [3, 4]], False)
    assert rows(model, {"input_ids": torch.tensor([1, 2, 3]), "attention_mask": torch.tensor([0, 1, 1])}) == (
        [[2, 3]],
        True,
    )


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ({}, "a mapping with nothing"),
        ({"ids": [1]}, "a mapping with 'ids' as a prompt, but no 'input_ids'"),
        ({"role": "user", "content": "hi"}, "a chat message"),
        ([{"role": "user", "content": "hi"}], "a chat message"),
        ([{"ids": [1]}], "a mapping with 'ids'"),
        ({"input_ids": []}, "no prompts"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, "an attention_mask"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1, 1], [1, 1]]}, "an attention_mask"),
        ({"input_ids": [1, 2], "attention_mask": [0.5, 1]}, "an attention_mask"),
        ({"input_ids": [1, 2], "attention_mask": [0, 0]}, "an empty prompt"),
        ({"input_ids": ["hi"]}, "neither text"),
        ([{"input_ids": [[1], [2]]}], "a list of batches"),
        (b"hi", "neither text"),
        (bytearray(b"hi"), "neither text"),
        ({"hi", "hello"}, "neither text"),
    ],
)
def test_what_is_no_prompt(model: llm.Model, prompts: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        model.generate(prompts, 4)


def test_a_seed_is_an_integer(model: llm.Model) -> None:
    for seed in (None, 1.5, "a"):
        with pytest.raises(PromptError, match="a seed of"):
            model.generate([1], 4, temperature=1.0, seed=seed)  # type: ignore[arg-type]


def test_a_file_of_one_prompt(model: llm.Model, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("hi")
    with pytest.raises(PromptError, match="neither text"):
        model.generate(path, 4)  # type: ignore[arg-type]
