"""Folders that are not what they should be are refused before anything runs, by what is wrong with them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from polyrhythm import llm, nn
from polyrhythm.errors import DTypeError, UnsupportedError
from polyrhythm.llm.errors import (
    ContextLengthError,
    ModelDamagedError,
    ModelMismatchError,
    ModelMissingError,
    PromptError,
)
from polyrhythm.llm.read_config import read_config
from polyrhythm.llm.rope import Rotary
from polyrhythm.nn.errors import WeightsFileError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return llm.write_random(tmp_path / "model")


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def split_in_two(folder: Path) -> list[Path]:
    """The weights in two files and an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
    for file, own in halves.items():
        save_file({name: weights[name] for name in own}, folder / file)
    index = {"weight_map": {name: file for file, own in halves.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return [folder / file for file in halves]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelMissingError, match="there is no folder"):
        llm.load(tmp_path / "nowhere")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelMissingError, match=r"no config.json in .*, only model.safetensors, tokenizer.json"):
        llm.load(folder)


def test_a_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')
    with pytest.raises(ModelDamagedError, match=r"config.json is not JSON"):
        llm.load(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelMissingError, match="there are no weights"):
        llm.load(folder)


@pytest.mark.parametrize("size", [0, 4, 100, 20_000])
def test_weights_that_are_cut_off(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelDamagedError, match="not a whole safetensors file"):
        llm.load(folder)


def test_a_file_of_the_index_that_is_missing(folder: Path) -> None:
    _, second = split_in_two(folder)
    second.unlink()
    with pytest.raises(ModelMissingError, match=r"names b.safetensors, which is not there"):
        llm.load(folder)


def test_a_file_of_the_index_that_is_cut_off(folder: Path) -> None:
    first, _ = split_in_two(folder)
    first.write_bytes(first.read_bytes()[:-8])
    with pytest.raises(ModelDamagedError, match=r"a.safetensors is not a whole"):
        llm.load(folder)


def test_an_index_that_does_not_belong_to_the_files(folder: Path) -> None:
    split_in_two(folder)
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace('"lm_head.weight": "a', '"lm_head.weight": "b'))
    with pytest.raises(ModelMismatchError, match=r"'lm_head.weight' is in b.safetensors, but it is not there"):
        llm.load(folder)


@pytest.mark.parametrize("file", [None, 5, ["a.safetensors"], {}])
def test_an_index_that_names_no_files(folder: Path, file: Any) -> None:
    split_in_two(folder)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = file
    path.write_text(json.dumps(index))
    with pytest.raises(ModelDamagedError, match=r"index.json has .* for 'lm_head.weight' in weight_map"):
        llm.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, "missing model.layers.2.input_layernorm.weight"),
        ({"num_hidden_layers": 1}, "unknown model.layers.1.input_layernorm.weight"),
        ({"hidden_size": 32}, "has shape"),
        ({"num_key_value_heads": 3}, "4 heads of queries for 3 heads of keys"),
        ({"vocab_size": None}, "vocab_size = None, which must be a positive integer"),
        ({"attention_bias": True}, "missing model.layers.0.self_attn.k_proj.bias"),
    ],
)
def test_a_config_of_another_model(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(ModelMismatchError, match=message):
        llm.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type = 'bert'"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish'"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "'spiral'"),
        ({"torch_dtype": "int8"}, "int8"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ({"layer_types": 3}, "layer_types"),
        ({"model_type": "mistral", "sliding_window": 8, "layer_types": ["full_attention"] * 2}, "layer_types"),
    ],
)
def test_models_that_are_not_known(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(UnsupportedError, match=message):
        llm.load(folder)


def test_a_dtype_that_is_given_counts(folder: Path) -> None:
    change_config(folder, torch_dtype="float64")
    with pytest.raises(UnsupportedError, match=r"dtype = 'float64'"):
        llm.load(folder, backend="numpy")
    for dtype in ("float32", "float16", ml_dtypes.bfloat16):
        model = llm.load(folder, dtype, backend="numpy")
        assert {weight.dtype for weight in model.weights.values()} == {np.dtype(dtype)}
    for dtype in ("int16", "float64", int):
        with pytest.raises(UnsupportedError, match="weights of"):
            llm.load(folder, dtype)
    with pytest.raises(DTypeError):
        llm.load(folder, "float33")


@pytest.mark.parametrize("size", [0, -3, 2.0, None, True, 2**31])
def test_a_window_without_a_step(size: Any) -> None:
    with pytest.raises(PromptError, match="a window of"):
        llm.window(size)


def test_weights_that_are_not_floats(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].astype("int8")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelMismatchError, match="elements of I8"):
        llm.load(folder)


def test_a_tokenizer_that_is_damaged(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelDamagedError, match="is not a tokenizer"):
        llm.load(folder)


def test_text_needs_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    model = llm.load(folder)
    with pytest.raises(ModelMissingError, match=r"no tokenizer.json"):
        model.generate("hello")


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "no prompts"),
        ([[]], {}, "an empty prompt"),
        ([1, 260], {}, "the token 260"),
        ([-1], {}, "the token -1"),
        ([[1.5]], {}, "neither text nor a list of tokens"),
        ([1], {"temperature": -1.0}, "a temperature of -1.0"),
        ([1], {"top_k": 0}, "the top 0 tokens"),
        ([1], {"top_p": 1.5}, "top_p = 1.5"),
        ([1], {"temperature": float("nan")}, "a temperature of nan"),
        ([1], {"temperature": float("inf")}, "a temperature of inf"),
        ([1], {"temperature": "warm"}, "a temperature of warm"),
        ([1], {"top_k": 2.5}, "the top 2.5 tokens"),
        ([1], {"top_p": float("nan")}, "top_p = nan"),
        ([1], {"max_new_tokens": -1}, "-1 new tokens"),
        ([1], {"max_new_tokens": 4.0}, "4.0 new tokens"),
        ([1], {"max_new_tokens": None}, "None new tokens"),
        ([1], {"max_new_tokens": [2, 3]}, "2 numbers of new tokens for 1 prompts"),
        ([1], {"max_new_tokens": [0]}, "0 new tokens"),
        ([1], {"max_new_tokens": 2**31}, "2147483648 new tokens"),
        ([1], {"max_new_tokens": 2**31 - 1}, "a text of 2147483648 tokens"),
        (5, {}, "neither text nor a list of tokens"),
        (None, {}, "neither text nor a list of tokens"),
        (np.array(5), {}, "neither text nor a list of tokens"),
        ([[1, [2, 3]]], {}, "neither text nor a list of tokens"),
        ([1, [2, 3]], {}, "neither text nor a list of tokens"),
        (["a", 5], {}, "neither text nor a list of tokens"),
        ([True], {}, "neither text nor a list of tokens"),
        ("a\ud800", {}, "which is no character"),
    ],
)
def test_prompts_that_cannot_be_gone_on_from(folder: Path, prompts: Any, options: dict[str, Any], message: str) -> None:
    model = llm.load(folder)
    with pytest.raises(PromptError, match=message):
        model.generate(prompts, **options)


@pytest.mark.parametrize("chunk", [0, -1, 2.0, None])
def test_a_stream_in_chunks_of_nothing(folder: Path, chunk: Any) -> None:
    with pytest.raises(PromptError, match="chunks of"):
        llm.load(folder).stream([1], chunk=chunk)


def test_prompts_in_other_containers(folder: Path) -> None:
    model = llm.load(folder, backend="numpy")

    def tokens(prompts: Any) -> tuple[list[list[int]], bool]:
        rows, alone = model.reader.rows(prompts)
        return [row.tolist() for row in rows], alone

    one = [model.tokenizer.encode("ab").ids]
    assert tokens("ab") == (one, True)
    assert tokens(["ab"]) == tokens(np.array(["ab"])) == tokens(word for word in ["ab"]) == (one, False)
    assert tokens([1, 2]) == tokens(np.array([1, 2])) == tokens(range(1, 3)) == ([[1, 2]], True)
    assert tokens([np.array(1), np.int64(2)]) == tokens(n for n in (1, 2)) == ([[1, 2]], True)
    assert tokens([[1, 2], np.array([3])]) == ([[1, 2], [3]], False)
    assert tokens(np.array([[1, 2], [3, 4]])) == ([[1, 2], [3, 4]], False)


def test_a_prompt_beyond_the_trained_positions_is_warned_of(tmp_path: Path) -> None:
    model = llm.load(llm.write_random(tmp_path, max_position_embeddings=16), backend="numpy")
    with pytest.warns(UserWarning, match="a prompt of 17 tokens is longer than the 16 that the model was trained on"):
        model.generate(list(range(17)), 2)
    model.generate(list(range(16)), 2)
    model.attending(llm.window(4)).generate(list(range(17)), 2)  # sees no more than it was trained on


def test_learnt_positions_end(tmp_path: Path) -> None:
    model = llm.load(llm.write_random(tmp_path, "gpt2", n_positions=16))
    with pytest.raises(ContextLengthError, match="17 tokens, but the model has 16 positions"):
        model.generate([1, 2], 15)
    with pytest.raises(ContextLengthError):
        model.logits([1] * 17)


def test_weights_are_converted_and_stacked(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    model = llm.load(folder, dtype="bfloat16")
    stack = np.asarray(model.weights["model.layers.mlp.up_proj.weight"])
    assert stack.dtype == ml_dtypes.bfloat16
    for number, layer in enumerate(stack):
        expected = weights[f"model.layers.{number}.mlp.up_proj.weight"].astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(layer, expected)


def test_two_spellings_of_one_configuration(folder: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    change_config(folder, rope_theta=5e5, rope_scaling={"rope_type": "llama3", **scaling}, torch_dtype="bfloat16")
    older = read_config(folder)
    change_config(folder, rope_theta=None, rope_scaling=None, torch_dtype=None, dtype="bfloat16")
    change_config(folder, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    assert read_config(folder) == older
    assert older.kinds[0].rotary == Rotary(5e5, "llama3", 8.0, 1.0, 4.0, 64)


def test_older_files_of_gpt2_leave_the_prefix_out(tmp_path: Path) -> None:
    folder = llm.write_random(tmp_path, "gpt2")
    expected = llm.load(folder).weights
    weights = {n.removeprefix("transformer."): w for n, w in load_file(folder / "model.safetensors").items()}
    weights["h.0.attn.bias"] = np.tril(np.ones((1, 1, 8, 8), "float32"))
    save_file(weights, folder / "model.safetensors")
    found = llm.load(folder).weights
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_array_equal(found[name], weight)


def test_the_ends_of_the_generation_file_go_first(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert read_config(folder).ends == (5, 6)


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"])
@pytest.mark.parametrize("size", [10**8, 10**12])
def test_sizes_that_the_files_cannot_hold_are_refused_before_allocating(folder: Path, key: str, size: int) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: size}))
    tracemalloc.start()
    with pytest.raises(ModelMismatchError, match=f"{key} = {size:,}"):
        llm.load(folder)
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_that_are_not_numbers_are_named(folder: Path, dtype: str) -> None:
    file = folder / "model.safetensors"
    arrays = {name: np.array(array) for name, array in nn.load(file).items()}
    name = sorted(name for name in arrays if "mlp" in name)[0]
    arrays[name].reshape(-1)[5] = np.inf
    nn.save(arrays, file)
    llm.load(folder, dtype=dtype, backend="numpy")
    arrays[name].reshape(-1)[7] = np.nan
    nn.save(arrays, file)
    with pytest.raises(ModelDamagedError, match=f"{name}.*NaN"):
        llm.load(folder, dtype=dtype, backend="numpy")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/tmp/outside.safetensors", "a/../../b.safetensors"])
def test_an_index_names_only_files_of_its_folder(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(ModelDamagedError, match="not inside its folder"):
        llm.load(folder)
    with pytest.raises(WeightsFileError, match="not inside its folder"):
        nn.load(folder)
