"""How texts end, how long they may be, how tokens are drawn, and attention in other patterns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import polyrhythm as pr
from polyrhythm import llm
from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.patterns import Coded, attend
from polyrhythm.llm.sampling import Choice, chosen, sampling
from tests.llm.references import PROMPTS, Reference


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=1, eos_token_id=None)


@pytest.fixture(scope="module")
def model(folder: Path) -> llm.Model:
    return llm.load(folder)


def test_a_text_ends_at_its_end_and_the_run_with_the_last(model: llm.Model, tmp_path: Path) -> None:
    free = [one.tokens.tolist() for one in model.generate(PROMPTS, 40)]
    # Ends that the three texts meet at different steps, none of them at the limit.
    ends = [free[0][5], free[1][17], free[2][9]]
    stopping = llm.load(llm.write_random(tmp_path, num_hidden_layers=1, eos_token_id=ends))
    found = stopping.generate(PROMPTS, 40)
    expected = [next(n for n, token in enumerate(text) if token in ends) + 1 for text in free]
    assert [len(one.tokens) for one in found] == expected
    for one, text in zip(found, free, strict=True):
        assert one.tokens.tolist() == text[: len(one.tokens)]
        assert one.finish_reason == "stop"
    how = sampling(260, ends)
    run = stopping._run([np.array(prompt) for prompt in PROMPTS], [40] * 3, how)
    assert run is not None
    steps = run.generating.program(bounds=run.bounds, **run.inputs)
    assert len(steps) == max(len(p) + n for p, n in zip(PROMPTS, expected, strict=True)), "the loop itself stops"
    streamed = list(stopping.stream(PROMPTS, 40))
    assert sum(pieces[0] is not None for pieces in streamed) == expected[0]


@pytest.mark.slow
def test_any_length_with_few_compilations(model: llm.Model) -> None:
    longest = model.generate([9, 8, 7], 61).tokens.tolist()
    for count in (1, 2, 3, 5, 8, 13, 29, 40, 60):
        assert model.generate([9, 8, 7], count).tokens.tolist() == longest[:count]
    stats = model.generating(1).program.stats
    assert len(stats.compilations) <= 6  # lengths from 4 to 64


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "drawn"])
def test_another_number_of_prompts_needs_no_other_program(model: llm.Model, options: Any) -> None:
    """Five prompts to eight share what was traced and compiled; each row is what it is in any other number of rows."""
    fresh = model.attending(None)
    prompts = [[3, 1, 4], [1, 5], [9, 2, 6, 5], [3], [5, 8, 9], [7, 9], [3, 2, 3], [8]]
    every = fresh.generate(prompts, 12, **options)
    (program,) = fresh.programs
    compiled = len(program.stats.compilations)
    for count in (5, 6, 7):
        some = fresh.generate(prompts[:count], 12, **options)
        assert [one.tokens.tolist() for one in some] == [one.tokens.tolist() for one in every[:count]]
        streamed = list(fresh.stream(prompts[:count], 12, **options))
        assert [[step[n].token for step in streamed if step[n]] for n in range(count)] == [
            one.tokens.tolist() for one in some
        ]
    assert fresh.programs == [program]
    assert len(program.stats.compilations) <= compiled + 2, "a stream is compiled once"
    fresh.logits([[1, 2, 3]] * 3)
    fresh.logits([[1, 2, 3]] * 4)
    assert len(fresh.programs) == 2


def test_nothing_to_write(model: llm.Model) -> None:
    assert model.generate([1, 2], 0).tokens.tolist() == []
    none: Any = np.int64(0)
    assert model.generate([1, 2], none).text == ""
    assert list(model.stream([1, 2], 0)) == []


@pytest.mark.slow
def test_one_prompt_or_a_list(model: llm.Model) -> None:
    one = model.generate("ab", 4)
    (same,) = model.generate(["ab"], 4)
    assert isinstance(one, llm.Generated)
    assert one.text == same.text
    assert one.tokens.tolist() == model.generate(np.array(model.tokenizer.encode("ab").ids), 4).tokens.tolist()
    assert "".join(piece.text for piece in model.stream("ab", 4)) == one.text
    four: Any = np.int64(4)
    assert [found.text for found in model.generate((prompt for prompt in ["ab"]), four)] == [one.text]


@pytest.mark.slow
def test_draws_with_a_seed_are_the_same(model: llm.Model) -> None:
    def draw(seed: int, **options: Any) -> list[int]:
        return model.generate([1, 2, 3], 12, temperature=1.0, seed=seed, **options).tokens.tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert [piece.token for piece in model.stream([1, 2, 3], 12, temperature=1.0, seed=1)] == draw(1)
    greedy = model.generate([1, 2, 3], 12).tokens.tolist()
    assert draw(3, top_k=1) == greedy
    assert draw(3, top_p=1e-6) == greedy


LOGITS = np.log(np.array([0.5, 0.05, 0.2, 0.15, 0.1], "float32"))


@pytest.mark.parametrize(
    ("how", "given", "expected"),
    [
        (Choice(), {}, [1, 0, 0, 0, 0]),
        (Choice(True), {"temperature": 1.0}, [0.5, 0.05, 0.2, 0.15, 0.1]),
        (Choice(True), {"temperature": 0.5}, np.array([0.25, 0.0025, 0.04, 0.0225, 0.01]) / 0.325),
        (Choice(True, 3), {"temperature": 1.0}, np.array([0.5, 0, 0.2, 0.15, 0]) / 0.85),
        (Choice(True, None, True), {"temperature": 1.0, "top_p": 0.75}, np.array([0.5, 0, 0.2, 0.15, 0]) / 0.85),
        (Choice(True, 2, True), {"temperature": 1.0, "top_p": 0.99}, np.array([0.5, 0, 0.2, 0, 0]) / 0.7),
        (Choice(True, 4, True), {"temperature": 1.0, "top_p": 0.4}, [1, 0, 0, 0, 0]),
        (Choice(True), {"temperature": 1e-30}, [1, 0, 0, 0, 0]),
        (Choice(True, 3, True), {"temperature": 1e-30, "top_p": 1e-30}, [1, 0, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_should(how: Choice, given: dict[str, float], expected: Any) -> None:
    count = 20_000
    draws = pr.evaluate(chosen(pr.constant(np.tile(LOGITS, (count, 1))), how), given)
    shares = np.bincount(draws, minlength=5) / count
    np.testing.assert_allclose(shares, expected, atol=0.015)
    assert (shares[np.array(expected) == 0] == 0).all()


@pytest.mark.parametrize("how", [Choice(True), Choice(True, 2), Choice(True, None, True), Choice(True, typical_p=True)])
def test_a_draw_of_large_logits_at_a_small_temperature(how: Choice) -> None:
    """Divided as they are, several of them would be infinite."""
    logits = pr.constant(np.array([9000.0, 8999.0, 9001.0, -9000.0], "float32"))
    given = (
        {"temperature": 1e-30} | ({"top_p": 0.9} if how.top_p else {}) | ({"typical_p": 0.9} if how.typical_p else {})
    )
    assert pr.evaluate(chosen(logits, how), given) == 2


def test_numbers_that_choose() -> None:
    plain = sampling(100, [])
    assert sampling(100, [], temperature=1e-31, top_k=5, top_p=0.5) == plain
    assert plain.choice == Choice()
    numbers: Any = {"temperature": np.int64(1), "top_k": np.int64(5), "top_p": np.float32(0.5)}
    drawn = sampling(100, [], **numbers)
    assert drawn.choice == Choice(True, 5, True)
    assert drawn.inputs == {"temperature": 1.0, "top_p": 0.5}
    assert {type(number) for number in drawn.inputs.values()} == {float}


def strided(t: pr.Dim) -> slice:
    return slice(t % 2, t + 1, 2)


def prefixed(t: pr.Dim) -> list[slice]:
    return [slice(0, pr.min(4, t + 1)), slice(pr.max(4, t - 7), t + 1)]


SLOPES = np.array([[0.5], [0.25], [0.125], [0.0625]], "float32")


def distant(t: pr.Dim) -> llm.Seen:
    return llm.Seen(slice(0, t + 1), -SLOPES * (pr.value(t) - pr.arange(t + 1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama 3, scaled", "llama 2"])
@pytest.mark.parametrize("pattern", [strided, prefixed, distant])
def test_attention_in_a_pattern_of_the_user(name: str, pattern: Any, tmp_path: Path) -> None:
    """Transformers are given the same as a mask over all pairs of steps."""
    reference = Reference(name)
    model = llm.load(reference.save(tmp_path), attention=pattern)
    tokens = np.random.default_rng(0).integers(0, 256, 40).tolist()
    step, other = np.arange(40)[:, None], np.arange(40)[None]
    seen = {
        strided: (step - other) % 2 == 0,
        prefixed: (other < 4) | (other > step - 8),
        distant: np.ones((40, 40), bool),
    }[pattern] & (other <= step)
    bias = -SLOPES[:, :, None] * (step - other) if pattern is distant else None
    expected = reference.logits(tokens, seen, bias)
    assert np.abs(model.logits(tokens) - expected).max() < 1e-4
    written = model.generate(tokens[:20], 8).tokens.tolist()
    text = tokens[:20] + written
    assert model.logits(text)[19:-1].argmax(-1).tolist() == written


def test_a_window_keeps_only_what_it_reaches(model: llm.Model) -> None:
    kept = model.attending(llm.window(8)).generating(1).program.memory
    whole = model.generating(1).program.memory
    lengths = {"T": 1024, "P": 1}
    assert kept.kept(lengths) == kept.kept({**lengths, "T": 4096})
    assert whole.kept({**lengths, "T": 4096}) > 3 * whole.kept(lengths)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_with_a_window_more_steps_are_more_tokens_and_nothing_else(family: str, tmp_path: Path) -> None:
    """No table of positions is kept for steps to come."""
    layers = {"n_layer": 3} if family == "gpt2" else {"num_hidden_layers": 3}
    model = llm.load(llm.write_random(tmp_path, family, **layers)).attending(llm.window(8))
    plan, few, many = model.generating(1).program.memory, {"T": 100, "P": 10}, {"T": 1000, "P": 10}
    # Four bytes for a token that is given, and four for one that is written.
    assert plan.bytes(many) - plan.bytes(few) == 900 * 8


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_other_backends_write_the_same(folder: Path, model: llm.Model, backend: str) -> None:
    other = llm.load(folder, backend=backend)
    for one, same in zip(model.generate(PROMPTS, 12), other.generate(PROMPTS, 12), strict=True):
        assert one.tokens.tolist() == same.tokens.tolist()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "bloom", "mamba", "rwkv", "recurrent_gemma"])
def test_vectors_are_means_of_the_last_hidden_states(tmp_path: Path, family: str) -> None:
    folder = llm.write_random(tmp_path, family, eos_token_id=None)
    model = llm.load(folder, backend="numpy")
    reference = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    for row in ([1, 2, 3, 4, 5], [7]):
        with torch.no_grad():
            states = reference(torch.tensor([row])).last_hidden_state[0].numpy()
        mean = states.mean(0)
        np.testing.assert_allclose(model.embed(row), mean / np.linalg.norm(mean), atol=1e-4)
    assert model.embed([[1, 2, 3], [4]]).shape == (2, model.config.width)


def test_keys_and_values_in_eight_bits(tmp_path: Path) -> None:
    """The plan shows it, and a text is that of the same rounding by hand."""
    folder = llm.write_random(tmp_path, eos_token_id=None)
    model, coded = (llm.load(folder, kv_dtype=kind) for kind in (None, "int8"))
    lines = [line.split() for line in str(coded.generating().program.memory).splitlines()]
    stored = {name: shape for what, name, shape, *_ in lines if what == "buffer" and "_cache" in name}
    assert {"k_cache", "v_cache", "k_cache_scales", "v_cache_scales"} <= stored.keys()
    for name, shape in stored.items():
        assert shape.split("[")[0] == ("float16" if "scales" in name else "int8")
    text = np.random.default_rng(0).integers(0, 256, 60).tolist()
    assert coded.perplexity(text) == pytest.approx(model.perplexity(text), rel=0.02)
    assert coded.perplexity(text) != model.perplexity(text)
    assert len(coded.generate([text[:20], text[:3]], 5)[1].tokens) == 5
    mamba = llm.write_random(tmp_path / "mamba", "mamba")
    with pytest.raises(UnsupportedError, match="which stores no keys and values"):
        llm.load(mamba, kv_dtype="int8")


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("group", [1, 2])
def test_attention_over_codes_is_that_of_the_rounded_vectors(backend: str, group: int) -> None:
    rng, heads, size, steps = np.random.default_rng(0), 2, 8, 7
    q = rng.normal(size=(steps, heads, group, size)).astype("float32")
    k, v = (rng.normal(size=(steps, heads, size)).astype("float32") * 10.0 ** rng.integers(-2, 3) for _ in "kv")
    k[3, 1] = 0

    def rounded(x: np.ndarray) -> np.ndarray:
        scale = (np.abs(x).max(-1, keepdims=True) / 127).astype("float16").astype("float32")
        return np.clip(np.floor(x / np.where(scale > 0, scale, 1) + 0.5), -127, 127) * scale

    t, _ = pr.dim("t")
    queries = pr.input("q", (heads, group, size), (t,))
    keys, values = (pr.input(name, (heads, size), (t,)) for name in "kv")
    found = attend(queries, Coded.of(keys), Coded.of(values), t, llm.window(4))
    given: Any = {"q": q, "k": k, "v": v}
    wanted: Any = np.zeros((steps, heads, group, size))
    for n in range(steps):
        own, seen = rounded(k)[max(0, n - 3) : n + 1], rounded(v)[max(0, n - 3) : n + 1]
        scores = np.einsum("hgd,shd->hgs", q[n], own) * size**-0.5
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        wanted[n] = np.einsum("hgs,shd->hgd", shares / shares.sum(-1, keepdims=True), seen)
    wanted = wanted.reshape(steps, *found.shape)
    np.testing.assert_allclose(pr.compile(found, backend=backend)(**given), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pr.evaluate(found, given), wanted, rtol=1e-4, atol=1e-5)


def test_keys_and_values_in_half_the_bytes(tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path, eos_token_id=None)
    model, half = (llm.load(folder, kv_dtype=kind) for kind in (None, "bfloat16"))
    for own, kind in ((model, "float32"), (half, "bfloat16")):
        lines = [line.split() for line in str(own.generating().program.memory).splitlines()]
        stored = [shape for what, name, shape, *_ in lines if what == "buffer" and "_cache" in name]
        assert stored
        assert all(shape.startswith(f"{kind}[") for shape in stored)
    text = [1, 2, 3, 4, 5, 6]
    wanted = model.logits(text)
    np.testing.assert_allclose(half.logits(text), wanted, atol=0.03 * np.abs(wanted).max())
    assert np.abs(half.logits(text) - wanted).max() > 0
    assert len(half.generate(text, 5).tokens) == 5
