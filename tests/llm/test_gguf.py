"""GGUF files hold what the folder they were made of holds, and what is wrong with them is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from polyrhythm import llm
from polyrhythm.errors import UnsupportedError
from polyrhythm.llm.errors import ModelDamagedError, ModelMismatchError, ModelMissingError
from polyrhythm.llm.gguf_file import GGUFFile
from polyrhythm.llm.gguf_tokenizer import tokenizer_of
from tests.llm.gguf_files import permuted, smollm2, write_gguf

GOLDEN = Path(__file__).parent / "smollm2.json"
"""What transformers make of the same file: the likeliest tokens after each of a text, with their logits."""
TEXT = "The capital of France is Paris. In 1492, Columbus sailed the ocean"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llm.write_random(tmp_path_factory.mktemp("model"), num_hidden_layers=2)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_a_file_holds_the_weights_of_its_folder(folder: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    held = write_gguf(folder, path, kind)
    model, whole = llm.load(path, "float32", backend="numpy"), llm.load(folder, backend="numpy")
    assert model.weights.keys() == whole.weights.keys()
    for name, weight in model.weights.items():
        own = [n for n in held if n.replace(".0.", ".").replace(".1.", ".") == name]
        layers = [held[n] for n in sorted(own)]
        if "q_proj" in name or "k_proj" in name:
            heads = 4 if "q_proj" in name else 2
            assert not np.array_equal(np.stack(layers), weight)
            np.testing.assert_array_equal([permuted(layer, heads) for layer in weight], np.stack(layers))
        else:
            np.testing.assert_array_equal(weight, np.stack(layers) if "layers" in name else layers[0])
    if kind == "F32":
        expected = whole.generate([1, 2, 3], 8, ignore_eos=True).tokens.tolist()  # the file names no end
        assert model.generate([1, 2, 3], 8).tokens.tolist() == expected


@pytest.mark.parametrize(
    ("family", "config", "keys"),
    [
        ("qwen2", {}, {}),
        ("qwen3", {}, {}),
        ("gemma", {"tie_word_embeddings": True}, {}),
        ("olmo2", {"rms_norm_eps": 1e-5}, {}),
        (
            "granite",
            {
                "attention_multiplier": 0.3,
                "embedding_multiplier": 3.0,
                "residual_multiplier": 0.5,
                "logits_scaling": 2.0,
            },
            {
                "granite__attention__scale": 0.3,
                "granite__embedding_scale": 3.0,
                "granite__residual_scale": 0.5,
                "granite__logit_scale": 2.0,
            },
        ),
    ],
)
def test_other_architectures(family: str, config: Any, keys: Any, tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path, family, num_hidden_layers=2, eos_token_id=None, **config)
    held = write_gguf(folder, tmp_path / "model.gguf", architecture=family, **keys)
    assert held
    model, whole = llm.load(tmp_path / "model.gguf", backend="numpy"), llm.load(folder, backend="numpy")
    assert model.weights.keys() == whole.weights.keys()
    for name, weight in whole.weights.items():
        np.testing.assert_allclose(model.weights[name], weight, atol=1e-6)
    options = ("kinds", "epsilon", "activation", "scale", "embedding_scale", "residual_scale", "logit_scale", "tied")
    for option in options:  # a file has its numbers in float32
        found, expected = getattr(model.config, option), getattr(whole.config, option)
        assert found == (pytest.approx(expected, rel=1e-6) if isinstance(expected, float) else expected)


def test_lists_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "lists.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    lists: dict[str, list[Any]] = {
        "words": ["a", "", "größer", "\u4e2d" * 300],
        "numbers": [1, -2, 3],
        "floats": [0.5, -1e30],
        "truths": [True, False, True],
        "one": ["x"],
    }
    for name, value in lists.items():
        writer.add_array(f"llama.{name}", value)
    writer.add_string("llama.last", "end")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GGUFFile(path).metadata
    assert found == {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
    assert found["llama.words"] == lists["words"]
    assert (found["llama.truths"], found["llama.last"]) == (lists["truths"], "end")


@pytest.mark.parametrize("size", [0, 20, 2000, 100_000])
def test_a_file_that_is_cut_off(folder: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(folder, path)
    whole = path.read_bytes()
    assert len(whole) > size
    path.write_bytes(whole[:size])
    with pytest.raises(ModelDamagedError, match="not a whole GGUF file"):
        llm.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match=r"there is no file .*none.gguf"):
        llm.load(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"llama__expert_count": 4}, UnsupportedError, "llama.expert_count = 4"),
        ({"llama__attention__value_length": 8}, UnsupportedError, "value_length = 8, but heads of 16"),
        ({"llama__rope__dimension_count": 8}, UnsupportedError, "dimension_count = 8"),
        ({"llama__rope__scaling__type": "spiral"}, UnsupportedError, "'spiral'"),
        ({"architecture": "mpt"}, UnsupportedError, "general.architecture = 'mpt'"),
        ({"tokenizer__ggml__model": "bert"}, None, ""),
    ],
)
def test_files_that_are_not_known(folder: Path, tmp_path: Path, changes: Any, error: Any, message: str) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(folder, path, **changes)
    if error is None:
        assert llm.load(path).tokenizer is None  # no tokens are listed
        return
    with pytest.raises(error, match=message):
        llm.load(path)


def test_a_file_without_a_weight(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    config = json.loads((folder / "config.json").read_text())
    other = llm.write_random(tmp_path / "other", **{**config, "num_hidden_layers": 1})
    (other / "config.json").write_text(json.dumps(config))
    write_gguf(other, path)
    with pytest.raises(ModelMismatchError, match=r"missing blk.1.attn_k.weight"):
        llm.load(path)


def test_a_factor_for_each_pair_is_that_of_llama3(folder: Path, tmp_path: Path) -> None:
    """Files of Llama 3 hold the factors as a tensor, computed from what config.json says."""
    path = tmp_path / "model.gguf"
    held = write_gguf(folder, path)
    assert held
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "scaled.gguf", "llama")
    for name, entry in reader.fields.items():
        if name.startswith("llama."):
            writer.add_key_value(name, entry.contents(), entry.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.add_tensor("rope_freqs.weight", np.array([1, 1, 2, 2, 4, 4, 8, 8], "float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    rotary = llm.load(tmp_path / "scaled.gguf").config.kinds[0].rotary
    assert rotary is not None
    plain = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(rotary.speeds(16), plain / [1, 1, 2, 2, 4, 4, 8, 8], rtol=1e-6)


def test_a_tokenizer_by_scores() -> None:
    """SentencePiece joins the pair with the best score first; bytes stand for what is in no token."""
    tokens = ["<unk>", "<s>", "<0xC3>", "<0xA4>", "▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "▁ab"]
    scores = [0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -3.0, -1.0, -5.0, -4.0, -6.0]
    given = {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": [2, 3, 6, 6, *[1] * 9],
        "bos_token_id": 1,
    }
    made = tokenizer_of({f"tokenizer.ggml.{key}": value for key, value in given.items()}, "m.gguf")
    # bc has the best score, then abc, which is better than the ▁a that a greedy reader would begin with.
    assert made.encode("abc").tokens == ["<s>", "▁", "abc"]
    assert made.encode("ab ä").tokens == ["<s>", "▁ab", "▁", "<0xC3>", "<0xA4>"]
    assert made.decode(made.encode("ab ä abc").ids) == "ab ä abc"


def test_a_split_that_is_not_known() -> None:
    given = {"model": "gpt2", "pre": "jais-9", "tokens": ["a"], "merges": []}
    with pytest.raises(UnsupportedError, match="'jais-9'"):
        tokenizer_of({f"tokenizer.ggml.{key}": value for key, value in given.items()}, "m.gguf")


def test_a_real_model_answers_as_in_transformers() -> None:
    """The logits that transformers found for the same file are in a file beside the test."""
    model = llm.load(smollm2())
    golden = json.loads(GOLDEN.read_text())
    assert model.tokenizer.encode(TEXT).ids == golden["tokens"]
    logits = model.logits(golden["tokens"])
    assert logits.argsort(-1)[:, :-4:-1].tolist() == golden["likeliest"]
    found = np.take_along_axis(logits, np.array(golden["likeliest"]), -1)
    assert np.abs(found - golden["logits"]).max() < 1e-3
    assert model.tokenizer.decode(golden["tokens"]) == TEXT


@pytest.mark.slow
def test_a_real_model_equals_transformers() -> None:
    """Rewrites nothing: what is in the file beside the test is what transformers find now."""
    path = smollm2()
    where: dict[str, Any] = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    reference = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    model = llm.load(path)
    golden = json.loads(GOLDEN.read_text())
    with torch.no_grad():
        expected = reference(torch.tensor([golden["tokens"]])).logits[0].numpy()
        written = reference.generate(
            torch.tensor([golden["tokens"]]), max_new_tokens=64, do_sample=False, eos_token_id=None
        )
    assert np.abs(model.logits(golden["tokens"]) - expected).max() < 1e-3
    assert expected.argsort(-1)[:, :-4:-1].tolist() == golden["likeliest"]
    np.testing.assert_allclose(-np.sort(-expected, -1)[:, :3], golden["logits"], atol=1e-4)
    found = model.generate(golden["tokens"], 64).tokens.tolist()
    assert found == written[0, len(golden["tokens"]) :].tolist()[: len(found)]
