"""A language model on a mesh: the tokens of one device, no gather of what is spread."""

import tempfile
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import llm
from polyrhythm.compiler.backends.jax.run.collectives import collectives

DEVICES = jax.device_count()


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


def case_quantised_weights_are_refused() -> str:
    mesh = jax.make_mesh((DEVICES,), ("model",))
    with tempfile.TemporaryDirectory() as folder:
        path = llm.write_random(folder)
        with pytest.raises(pr.errors.UnsupportedError, match="quantised weights") as found:
            llm.load(path, dtype="int8", mesh=mesh)
    assert "fix: " in str(found.value)
    return "ok"


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
