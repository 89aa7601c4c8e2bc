"""Quantised weights stay so: what a file holds is what is multiplied, and int8 on loading changes little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from polyrhythm import llm
from polyrhythm.compiler.ir.ops import TABLE
from polyrhythm.llm.gguf_blocks import KINDS, quantised
from polyrhythm.llm.quantised import OFFSETS, SCALES, Format, Quantised, per_channel, stacked
from tests.llm.gguf_files import smollm2, write_gguf

TEXT = (
    "The lighthouse keeper climbed the stairs every evening, and every evening he counted them, although their number "
    "had not changed in forty years."
)


def elements(own: Quantised) -> np.ndarray:
    factors = [own.scales] if own.offsets is None else [own.scales, own.offsets]
    return TABLE["dequantize"].numpy(own.codes, *factors, dtype=np.dtype("float32"))


def random_blocks(kind: str, rows: int, blocks: int) -> np.ndarray:
    """Any bytes are a block, but for scales that would not be finite."""
    rng = np.random.default_rng(len(kind))
    _, size, _ = KINDS[kind]
    data = rng.integers(0, 256, (rows, blocks, size)).astype(np.uint8)
    halves = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}[kind]
    for start in halves:
        data[..., start : start + 2] = rng.normal(size=(rows, blocks, 1)).astype(np.float16).view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_a_file_are_read_as_the_library_reads_them(kind: str) -> None:
    data = random_blocks(kind, 3, 4)
    wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    found = quantised(data, kind, 3)
    assert found is not None
    rounding = 0 if kind in ("Q8_0", "Q4_0", "Q4_1") else 1e-3 * np.abs(wanted).max()
    np.testing.assert_allclose(elements(found), wanted, rtol=1e-6, atol=rounding + 1e-6)


def test_layers_of_different_kinds_are_stacked_in_one_that_holds_both() -> None:
    parts = [quantised(random_blocks(kind, 2, 1), kind, 2) for kind in ("Q4_K", "Q6_K")]
    known = [part for part in parts if part is not None]
    both = stacked(known, (2,))
    assert both.format == Format(8, 16, offsets=True)
    for part, layer in zip(known, elements(both), strict=True):
        np.testing.assert_array_equal(elements(part), layer)


def test_per_channel_rounds_each_row_to_its_own_steps() -> None:
    matrix = np.random.default_rng(0).normal(size=(5, 32)).astype("float32") * 10.0 ** np.arange(-2, 3)[:, None]
    matrix[2] = 0
    error = np.abs(elements(per_channel(matrix)) - matrix).max(-1)
    assert (error <= np.abs(matrix).max(-1) / 127 * 0.51 + 1e-9).all()


@pytest.mark.parametrize(
    ("kind", "backend"), [("Q8_0", "numpy"), ("Q4_0", "numpy"), ("Q4_1", "numpy"), ("Q4_1", "jax")]
)
def test_a_file_stays_quantised_and_gives_what_its_floats_give(tmp_path: Path, kind: str, backend: str) -> None:
    folder = llm.write_random(tmp_path / "model", num_hidden_layers=2, eos_token_id=None)
    write_gguf(folder, tmp_path / "model.gguf", kind)
    model = llm.load(tmp_path / "model.gguf", backend=backend)
    floats = llm.load(tmp_path / "model.gguf", "float32", backend="numpy")
    sizes = [sum(np.asarray(w).nbytes for w in m.weights.values()) for m in (model, floats)]
    assert sizes[0] < sizes[1] * (0.3 if kind == "Q8_0" else 0.21)
    assert "-bit weights" in repr(model)
    text = [1, 2, 3, 4, 5, 6, 7]
    # Rows together are products of BLAS, of which one has all elements and the other makes them: float32 rounds.
    np.testing.assert_allclose(model.logits(text), floats.logits(text), rtol=2e-5, atol=2e-5)
    assert model.generate(text, 12).tokens.tolist() == floats.generate(text, 12).tokens.tolist()
    several = [[1, 2, 3], [4, 5, 6, 7], [8]]
    for one, other in zip(model.generate(several, 6), floats.generate(several, 6), strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()


def rounded(model: llm.Model) -> llm.Model:
    """The same model as floats that are equal to its quantised weights."""
    arrays = {name: np.asarray(weight) for name, weight in model.weights.items()}
    found = {}
    for name in (name for name in arrays if not name.endswith((SCALES, OFFSETS))):
        own = arrays[name]
        if name in model.config.formats:
            own = elements(Quantised(own, arrays[name + SCALES], arrays.get(name + OFFSETS)))
        found[name] = own
    return llm.Model(replace(model.config, formats={}), found, None, None, model.backend)


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        ("llama", "jax"),
        ("llama", "numpy"),
        ("gpt2", "numpy"),
        ("mamba", "numpy"),
        ("qwen3_moe", "numpy"),
        ("rwkv", "numpy"),
    ],
)
def test_int8_on_loading(tmp_path: Path, family: str, backend: str) -> None:
    folder = llm.write_random(tmp_path, family, num_hidden_layers=1, eos_token_id=None)
    model = llm.load(folder, "int8", backend=backend)
    assert {array.dtype.name for array in model.weights.values()} == {"int8", "float16", "float32"}
    text = list(range(1, 9))
    wanted = rounded(model).logits(text)
    np.testing.assert_allclose(model.logits(text), wanted, atol=1e-4 * np.abs(wanted).max())


def test_a_real_file_takes_what_it_takes_on_disk() -> None:
    path = smollm2()
    model = llm.load(path)
    assert sum(array.nbytes for array in model.weights.values()) < 1.02 * path.stat().st_size
    assert {f.bits for f in model.config.formats.values()} == {4, 8}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "int8"])
def test_perplexity_is_that_of_the_dequantised_weights(tmp_path: Path, kind: str) -> None:
    folder = llm.write_random(tmp_path / "model", num_hidden_layers=2, eos_token_id=None)
    if kind == "int8":
        model = llm.load(folder, "int8")
    else:
        write_gguf(folder, tmp_path / "model.gguf", kind)
        model = llm.load(tmp_path / "model.gguf")
    tokens = np.random.default_rng(0).integers(0, 256, 80).tolist()
    assert model.perplexity(tokens) == pytest.approx(rounded(model).perplexity(tokens), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "int8"])
def test_perplexity_of_the_real_model_is_that_of_its_dequantised_weights(dtype: str | None) -> None:
    model = llm.load(smollm2(), dtype)
    tokens = model.reader.tokens(TEXT)
    assert model.perplexity(tokens) == pytest.approx(rounded(model).perplexity(tokens), rel=1e-3)
