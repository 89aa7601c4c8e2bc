"""A language model on a mesh: the tokens of one device, no gather of what is spread."""

import tempfile
from typing import Any

import jax
import numpy as np

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


def case_sequences_and_weights() -> dict[str, int]:
    if DEVICES < 4:
        return {}
    mesh = jax.make_mesh((DEVICES // 2, 2), ("data", "model"))
    plain, model = _models(mesh)
    prompts = [np.arange(n + 1, n + 9) for n in range(DEVICES)]
    expected, found = plain.generate(prompts, 8), model.generate(prompts, 8)
    assert [f.tokens.tolist() for f in found] == [e.tokens.tolist() for e in expected]
    kinds = sorted({one.kind for one in _talk(model)})
    return {kind: sum(one.kind == kind for one in _talk(model)) for kind in kinds}
