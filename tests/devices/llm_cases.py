"""A language model on a mesh: the tokens of one device, no gather of what is spread."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import llm
from polyrhythm.compiler.backends.jax.run.collectives import collectives
from polyrhythm.llm.chat import ChatTemplate
from polyrhythm.llm.serving.slots import Slots
from tests.llm.gguf_files import write_gguf
from tests.llm.test_adapters import write_adapter
from tests.llm.test_slots import answered

DEVICES = jax.device_count()
PROMPTS = [[1, 2, 3], [40, 41, 42, 43, 44, 45, 46], [9], list(range(100, 121)), [7, 7]]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def _tokens(found: Any) -> Any:
    return [_tokens(one) for one in found] if isinstance(found, list) else found.tokens.tolist()


def _meshes() -> Iterator[Any]:
    """Sequences over all devices, heads over two, and both."""
    yield jax.make_mesh((DEVICES,), ("data",))
    if DEVICES >= 2:
        yield jax.make_mesh((2,), ("model",), devices=jax.devices()[:2])
    if DEVICES >= 4:
        yield jax.make_mesh((DEVICES // 2, 2), ("data", "model"))


def _models(mesh: Any, **how: Any) -> tuple[llm.Model, llm.Model]:
    with tempfile.TemporaryDirectory() as folder:
        path = llm.write_random(folder, **how)
        return llm.load(path), llm.load(path, mesh=mesh)


def _talk(model: llm.Model) -> list[Any]:
    programs = [found.program for found in model._generating.values()]
    texts = [one.as_text() for program in programs for one in program.backend.executor.programs.values()]
    return [one for text in texts for one in collectives(text, DEVICES)]


def batch_of(program: Any, count: int) -> int:
    """How many of some sequences a device writes."""
    (compiled, *_) = program.backend.executor.programs.values()
    tokens = compiled.output_shardings[0]["token"]
    found: int = tokens.shard_shape((512, count))[1]
    return found


def case_quantised_weights() -> dict[str, int]:
    """Codes and scales lie with the heads and units that they are of; blocks are never cut."""
    ways = min(DEVICES, 2)
    mesh = jax.make_mesh((ways,), ("model",), devices=jax.devices()[:ways])
    counts = {}
    with tempfile.TemporaryDirectory() as name:
        folder = llm.write_random(Path(name) / "model", eos_token_id=None)
        write_gguf(folder, Path(name) / "model.gguf", "Q4_1")
        for path, dtype in ((folder, "int8"), (Path(name) / "model.gguf", None)):
            plain, model = llm.load(path, dtype, backend="numpy"), llm.load(path, dtype, mesh=mesh)
            codes = "model.layers.self_attn.o_proj.weight"
            assert DEVICES == 1 or not model.weights[codes].sharding.is_fully_replicated
            for prompts in (PROMPTS[:1], PROMPTS):
                assert _tokens(model.generate(prompts, 6)) == _tokens(plain.generate(prompts, 6)), str(dtype)
            gathers = [one for one in _talk(model) if one.kind != "all-reduce" and one.bytes > 4 * 260 * 8]
            assert not gathers, gathers  # at most the logits
            counts[str(dtype)] = len(_talk(model))
    return counts


def case_weights_by_head() -> dict[str, int]:
    ways = min(DEVICES, 2)
    mesh = jax.make_mesh((ways,), ("model",), devices=jax.devices()[:ways])
    plain, model = _models(mesh)
    prompt = np.arange(1, 9)
    expected, found = plain.generate(prompt, 12), model.generate(prompt, 12)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert np.allclose(model.score(prompt), plain.score(prompt), atol=1e-4)
    kinds = sorted({one.kind for one in _talk(model)})
    large = [one for one in _talk(model) if one.kind != "all-reduce" and one.bytes > 4 * 260]
    assert not large, large
    return {kind: sum(one.kind == kind for one in _talk(model)) for kind in kinds}


def case_sequences_alone() -> dict[str, int]:
    """Only whether all texts have ended is asked of all devices."""
    mesh = jax.make_mesh((DEVICES,), ("data",))
    plain, model = _models(mesh)
    prompts = [np.arange(n + 1, n + 9) for n in range(2 * DEVICES)]
    for count in (2 * DEVICES, DEVICES + 1):
        expected, found = plain.generate(prompts[:count], 8), model.generate(prompts[:count], 8)
        assert [f.tokens.tolist() for f in found] == [e.tokens.tolist() for e in expected]
    for (batch, _), made in model._generating.items():
        assert batch_of(made.program, batch) == -(-batch // DEVICES), "sequences are not spread"
    assert all(one.kind == "all-reduce" and one.bytes <= 4 for one in _talk(model)), _talk(model)
    return {"all-reduce": len(_talk(model))}


def case_sequences_and_weights() -> dict[str, int]:
    if DEVICES < 4:
        return {}
    mesh = jax.make_mesh((DEVICES // 2, 2), ("data", "model"))
    plain, model = _models(mesh)
    prompts = [np.arange(n + 1, n + 9) for n in range(DEVICES)]
    for count in (DEVICES, DEVICES // 2 + 1, 1):  # the second does not divide
        expected, found = plain.generate(prompts[:count], 8), model.generate(prompts[:count], 8)
        assert [f.tokens.tolist() for f in found] == [e.tokens.tolist() for e in expected]
    for (batch, _), made in model._generating.items():
        assert batch_of(made.program, batch) == -(-batch * 2 // DEVICES), "sequences are not spread"
    few = prompts[: DEVICES // 2 + 1]
    drawn = [m.generate(few, 8, temperature=1.0, seed=3) for m in (plain, model)]
    assert [f.tokens.tolist() for f in drawn[0]] == [f.tokens.tolist() for f in drawn[1]]
    streams = [list(m.stream(few, 5)) for m in (plain, model)]
    texts = [[[None if p is None else p.token for p in step] for step in steps] for steps in streams]
    assert texts[0] == texts[1]
    texts_of_few = np.stack(few)
    assert np.allclose(model.logits(texts_of_few), plain.logits(texts_of_few), atol=1e-4)
    gathers = [one for one in _talk(model) if one.kind != "all-reduce" and one.bytes > 4 * 260 * 2]
    assert not gathers, gathers  # at most the logits of the sequences of a device
    kinds = sorted({one.kind for one in _talk(model)})
    return {kind: sum(one.kind == kind for one in _talk(model)) for kind in kinds}


def case_sizes_of_batches() -> str:
    """1, 5 and 40 prompts of different lengths, each with a length of its own to write, stop strings among them."""
    for mesh in _meshes():
        with tempfile.TemporaryDirectory() as folder:
            path = llm.write_random(folder, eos_token_id=None)
            plain, model = llm.load(path, backend="numpy"), llm.load(path, mesh=mesh)
        rng = np.random.default_rng(0)
        for count in (1, 5, 40):
            prompts = [rng.integers(1, 250, rng.integers(1, 30)).tolist() for _ in range(count)]
            lengths = rng.integers(1, 9, count).tolist()
            assert _tokens(model.generate(prompts, lengths)) == _tokens(plain.generate(prompts, lengths)), count
        prompts = prompts[:5]
        texts = plain.generate(prompts, 16)
        how: Any = {"stop": [texts[0].text[4:6], texts[2].text[3]], "stop_token_ids": [texts[1].tokens[4].item()]}
        found, expected = model.generate(prompts, 16, **how), plain.generate(prompts, 16, **how)
        assert [(f.text, f.finish_reason) for f in found] == [(e.text, e.finish_reason) for e in expected]
    return "ok"


def case_other_ways_to_write() -> str:
    """Beams, a draft model, a conversation, slots of a server, a LoRA adapter, log-probabilities and vectors."""
    *_, mesh = _meshes()
    with tempfile.TemporaryDirectory() as name:
        path = llm.write_random(Path(name) / "model", eos_token_id=None)
        small = llm.write_random(Path(name) / "small", eos_token_id=None, num_hidden_layers=1)
        adapter = write_adapter(Path(name) / "adapter", path)
        plain, model = llm.load(path, backend="numpy"), llm.load(path, mesh=mesh)
        draft, alone = llm.load(small, mesh=mesh), llm.load(small)
        adapted = [llm.load(path, adapter=adapter, **how) for how in ({"mesh": mesh}, {"backend": "numpy"})]
    assert _tokens(model.generate(PROMPTS[1], 8, num_beams=3)) == _tokens(plain.generate(PROMPTS[1], 8, num_beams=3))
    expected = _tokens(plain.generate(PROMPTS[:2], 8))
    assert _tokens(model.generate(PROMPTS[:2], 8, draft_model=draft)) == expected
    with pytest.raises(pr.errors.UnsupportedError, match="other devices"):
        model.generate(PROMPTS[0], 8, draft_model=alone)
    said = []
    for one in (model, plain):
        one.chat_template = ChatTemplate(TEMPLATE)
        talk = one.conversation()
        said.append([talk.send("hello there", 6).tokens.tolist(), talk.send("and more", 5).tokens.tolist()])
    assert said[0] == said[1]
    asked = [(PROMPTS[1], 9), (list(range(1, 60)), 8), (PROMPTS[0], 6), ([*range(1, 50), 3], 6)]
    options: list[Any] = [{}, {"temperature": 1.0, "seed": 3}, {}, {}]
    found, _ = answered(Slots(model, 3, 96), asked, options)
    assert found == [_tokens(plain.generate(*own, **how)) for own, how in zip(asked, options, strict=True)]
    assert _tokens(adapted[0].generate(PROMPTS, 6)) == _tokens(adapted[1].generate(PROMPTS, 6))
    logprobs = [m.generate(PROMPTS[:2], 5, logprobs=2)[1].logprobs for m in (model, plain)]
    for a, b in zip(*logprobs, strict=True):
        assert a.token == b.token
        assert abs(a.logprob - b.logprob) < 1e-3
    assert np.allclose(model.embed(PROMPTS[:2]), plain.embed(PROMPTS[:2]), atol=1e-4)
    assert np.allclose(model.score(PROMPTS[3]), plain.score(PROMPTS[3]), atol=1e-4)
    return "ok"
