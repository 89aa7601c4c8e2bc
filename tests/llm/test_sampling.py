"""Options of sampling against the processors of transformers, and the ends, samples and probabilities of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import polyrhythm as pr
from polyrhythm import llm
from polyrhythm.llm.errors import PromptError
from polyrhythm.llm.sampling import Choice, chosen, sampling
from polyrhythm.llm.writing import Row

PROMPT = [7, 3, 11, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    folder = llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1, eos_token_id=None)
    return llm.load(folder, backend="numpy")


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> llm.Model:
    """A model of few tokens, which repeats them."""
    small: Any = {"num_hidden_layers": 1, "eos_token_id": None, "vocab_size": 12, "tie_word_embeddings": True}
    return llm.load(llm.write_random(tmp_path_factory.mktemp("model"), seed=4, **small), backend="numpy")


LOGITS = np.log(np.array([0.4, 0.05, 0.2, 0.15, 0.1, 0.06, 0.04], "float32"))


@pytest.mark.parametrize(
    ("how", "given", "warpers"),
    [
        (Choice(True, min_p=True), {"min_p": 0.3}, [transformers.MinPLogitsWarper(0.3)]),
        (Choice(True, typical_p=True), {"typical_p": 0.5}, [transformers.TypicalLogitsWarper(0.5)]),
        (Choice(True, typical_p=True), {"typical_p": 0.9}, [transformers.TypicalLogitsWarper(0.9)]),
        (
            Choice(True, 5, True, min_p=True, typical_p=True),
            {"top_p": 0.9, "min_p": 0.3, "typical_p": 0.7},
            [
                transformers.TopKLogitsWarper(5),
                transformers.TopPLogitsWarper(0.9),
                transformers.MinPLogitsWarper(0.3),
                transformers.TypicalLogitsWarper(0.7),
            ],
        ),
    ],
)
def test_draws_are_those_of_transformers(how: Choice, given: dict[str, float], warpers: list[Any]) -> None:
    scores = torch.from_numpy(LOGITS)[None]
    for warper in warpers:
        scores = warper(torch.tensor([[0]]), scores)
    expected = torch.softmax(scores, -1)[0].numpy()
    count = 20_000
    draws = pr.evaluate(chosen(pr.constant(np.tile(LOGITS, (count, 1))), how), {"temperature": 1.0, **given})
    shares = np.bincount(draws, minlength=len(LOGITS)) / count
    np.testing.assert_allclose(shares, expected, atol=0.015)
    assert (shares[expected == 0] == 0).all()


def greedy(model: llm.Model, count: int, adjust: Any) -> list[int]:
    """The likeliest token after each step, by the model's logits and a function of the text and them."""
    text = list(PROMPT)
    for _ in range(count):
        text.append(int(np.argmax(adjust(text, model.logits(text)[-1]))))
    return text[len(PROMPT) :]


def repetition(text: list[int], logits: np.ndarray) -> np.ndarray:
    processor = transformers.RepetitionPenaltyLogitsProcessor(1.7)
    return processor(torch.tensor([text]), torch.from_numpy(logits)[None])[0].numpy()


def counted(text: list[int], logits: np.ndarray) -> np.ndarray:
    """What OpenAI's documentation says of both penalties: they count what was written, not what was given."""
    counts = np.bincount(text[len(PROMPT) :], minlength=len(logits))
    return logits - 3.0 * (counts > 0) - 0.5 * counts


def biased(text: list[int], logits: np.ndarray) -> np.ndarray:
    moved = logits.copy()
    moved[[5, 9]] += [100.0, 101.0]
    return np.array(repetition(text, moved))


def parity(logits: pr.Tensor, token: pr.Tensor, t: pr.Dim) -> pr.Tensor:
    """A processor that forbids the last token, and every second of the others, by the number of the step."""
    even = (pr.arange(int(logits.shape[-1])) + pr.value(t)) % 2 == 0
    return pr.where(even & ~pr.one_hot(token, logits.shape[-1], "bool"), logits, -1e9)


def by_parity(text: list[int], logits: np.ndarray) -> np.ndarray:
    changed = np.where((np.arange(len(logits)) + len(text) - 1) % 2 == 0, logits, -1e9)
    changed[text[-1]] = -1e9
    return changed


@pytest.mark.parametrize(
    ("options", "adjust"),
    [
        ({"repetition_penalty": 1.7}, repetition),
        ({"presence_penalty": 3.0, "frequency_penalty": 0.5}, counted),
        ({"logit_bias": {5: 100.0, 9: 101.0}, "repetition_penalty": 1.7}, biased),
        ({"processors": [parity]}, by_parity),
    ],
)
def test_penalties_bias_and_processors(repeating: llm.Model, options: Any, adjust: Any) -> None:
    expected = greedy(repeating, 10, adjust)
    assert expected != greedy(repeating, 10, lambda text, logits: logits)
    assert repeating.generate(PROMPT, 10, **options).tokens.tolist() == expected


@pytest.mark.slow
def test_penalties_of_a_batch_are_those_of_each_alone(repeating: llm.Model) -> None:
    prompts = [PROMPT, [5], [10, 4, 9, 3, 7]]
    options: Any = {"repetition_penalty": 1.5, "presence_penalty": 2.0}
    alone = [repeating.generate(prompt, 8, **options).tokens.tolist() for prompt in prompts]
    assert [one.tokens.tolist() for one in repeating.generate(prompts, 8, **options)] == alone


def test_log_probabilities(model: llm.Model) -> None:
    one = model.generate(PROMPT, 6, logprobs=3)
    text = [*PROMPT, *one.tokens.tolist()]
    expected = torch.log_softmax(torch.from_numpy(model.logits(text)), -1).numpy()[len(PROMPT) - 1 : -1]
    assert one.logprobs is not None
    assert [entry.token for entry in one.logprobs] == one.tokens.tolist()
    for entry, row in zip(one.logprobs, expected, strict=True):
        assert abs(entry.logprob - row[entry.token]) < 1e-4
        likeliest = np.argsort(-row)[:3]
        assert [token for token, _ in entry.top] == likeliest.tolist()
        np.testing.assert_allclose([value for _, value in entry.top], row[likeliest], atol=1e-4)
    assert [piece.logprob for piece in model.stream(PROMPT, 6, logprobs=3)] == list(one.logprobs)
    (plain,) = model.generate([PROMPT], 6, logprobs=0)
    assert [entry.top for entry in plain.logprobs] == [()] * 6
    assert model.generate(PROMPT, 6).logprobs is None


def test_samples_differ_and_belong_to_their_prompt(model: llm.Model) -> None:
    several = model.generate(PROMPT, 6, n=3, temperature=1.5, seed=3)
    assert len(several) == 3
    assert len({tuple(one.tokens.tolist()) for one in several}) > 1
    grouped = model.generate([PROMPT, [5]], 6, n=2)
    assert [[len(group), group[0].prompt_tokens] for group in grouped] == [[2, 4], [2, 1]]
    assert grouped[0][0].tokens.tolist() == grouped[0][1].tokens.tolist() == model.generate(PROMPT, 6).tokens.tolist()


@pytest.mark.slow
def test_stop_tokens_and_no_end(model: llm.Model, tmp_path: Path) -> None:
    free = model.generate(PROMPT, 12)
    end = free.tokens.tolist()[4]
    first = free.tokens.tolist().index(end)
    one = model.generate(PROMPT, 12, stop_token_ids=[end])
    assert one.tokens.tolist() == free.tokens.tolist()[: first + 1]
    assert one.finish_reason == "stop"
    assert free.finish_reason == "length"
    ending = llm.load(llm.write_random(tmp_path, num_hidden_layers=1, eos_token_id=end), backend="numpy")
    assert ending.generate(PROMPT, 12).tokens.tolist() == one.tokens.tolist()
    assert ending.generate(PROMPT, 12, ignore_eos=True).tokens.tolist() == free.tokens.tolist()


def test_a_stop_string_ends_a_text_before_it(model: llm.Model) -> None:
    prompt = "ab"
    free = model.generate(prompt, 24)
    stop = free.text[6:9]
    expected = free.text[: free.text.find(stop)]
    one = model.generate(prompt, 24, stop=stop)
    assert (one.text, one.finish_reason) == (expected, "stop")
    assert len(one.tokens) < len(free.tokens)
    pieces = list(model.stream(prompt, 24, stop=[stop, "never there"]))
    assert "".join(piece.text for piece in pieces) == expected
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]
    both = model.generate([prompt, "xyz"], 24, stop=stop)
    assert both[0].text == expected
    assert both[1].text == model.generate("xyz", 24, stop=stop).text


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))

    def id_to_token(self, token: int) -> str:
        return chr(token)

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    def pieces(text: str, *stop: str) -> list[str]:
        row = Row(Letters(), [ord("x")], len(text), (), stop)
        found = []
        for letter in text:
            if row.finish_reason is None:
                found.append(row.add(ord(letter)).text)
        return found

    assert pieces("abcabd", "abd") == ["", "", "abc", "", "", ""]
    assert pieces("aab", "ab") == ["", "a", ""]
    assert pieces("abab", "abc") == ["", "", "ab", "ab"]  # the last one lets go of what it held
    assert pieces("xay", "ab", "ay") == ["x", "", ""]
    assert pieces("hello") == list("hello")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1.0}, "an option 'temprature'"),
        ({"min_p": 1.5}, "min_p = 1.5"),
        ({"min_p": "a"}, "min_p = a"),
        ({"typical_p": 0.0}, "typical_p = 0.0"),
        ({"repetition_penalty": 0.0}, "a repetition penalty of 0.0"),
        ({"presence_penalty": float("nan")}, "a presence penalty of nan"),
        ({"logit_bias": {300: 1.0}}, "for the token 300"),
        ({"logit_bias": {"a": 1.0}}, "a bias for the token 'a'"),
        ({"logit_bias": {1: float("inf")}}, "a bias of inf"),
        ({"stop": ""}, "a text ended by ''"),
        ({"stop": [1]}, "a text ended by"),
        ({"stop": 3}, "a text ended by 3"),
        ({"stop_token_ids": [260]}, "a stop token 260"),
        ({"stop_token_ids": ["a"]}, "a stop token 'a'"),
        ({"stop_token_ids": 5}, "stop tokens 5"),
        ({"logit_bias": [1, 2]}, "a logit bias"),
        ({"processors": [5]}, "processors"),
        ({"seed": 2**70}, "a seed of"),
        ({"logprobs": -1}, "log-probabilities of -1"),
        ({"n": 0}, "0 samples"),
        ({"temperature": True}, "a temperature of True"),
    ],
)
def test_options_that_make_no_sense(options: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        sampling(260, [], **options)
