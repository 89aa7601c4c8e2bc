"""Programs lowered for accelerators that are not here: what is in the text, and what must not be."""

import re
import tempfile
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import llm, rl
from polyrhythm.compiler.backends.jax.target import lowering_for
from polyrhythm.llm.programs import scoring
from polyrhythm.llm.sampling import sampling
from tests.devices.mesh_programs import decoding, training

PLATFORMS = ["cuda", "tpu", "rocm"]
Made = tuple[pr.Program, dict[Any, int]]


def decoder() -> Made:
    h, b, _, T, _ = decoding()
    program = pr.compile(h, schedule={b: pr.vector()})
    B = next(symbol for symbol in program.compiled.loops.bounds if symbol.name == "B")
    return program, {B: 4, T: 64}


def one_text() -> pr.Program:
    t, T = pr.dim("t")
    start, w = pr.input("start", (8,)), pr.input("w", (8, 8))
    h = pr.recurrent((8,), (t,))
    weights = pr.softmax((h @ w)[0 : t + 1] @ h)
    h[0] = start
    h[t + 1] = pr.tanh(weights @ h[0 : t + 1])
    with pr.settings(without=("grow",)):
        return pr.compile(h[T - 1])


def learner() -> Made:
    outputs, _, B, _, I = training()
    return pr.compile(outputs), {B: 64, I: 8}


def agent() -> Made:
    carts = rl.Arrays(rl.CartPole(), 4)
    model = rl.ActorCritic(carts.observations, carts.actions, (8,), np.random.default_rng(0))
    done = rl.ppo(carts, model, rl.PPOSettings(steps=8, epochs=2, minibatches=2))
    return pr.compile(done.outputs, bounds=done.bounds), {done.iterations: 4}


def language_model() -> Made:
    with tempfile.TemporaryDirectory() as folder:
        model = llm.load(llm.write_random(folder))
    program = scoring(model.config, 1, None, "jax")
    return program, dict.fromkeys(program.compiled.loops.bounds, 64)


MADE: dict[str, Callable[[], Made]] = {
    "decoder": decoder,
    "learner": learner,
    "agent": agent,
    "language model": language_model,
}
HELD = {"decoder": "4x8x64x4xf32", "agent": "9x4x4xf32"}
"""What some of them keep of all steps, keys and values or what was seen: made once, then changed by slices."""

LARGE = 4096
"""Elements of a state's array from which on it is a buffer."""


def _text(made: Made, platform: str | None) -> str:
    program, bounds = made
    return program.lowered(bounds, platform=platform).text


@pytest.mark.parametrize("name", MADE)
def test_accelerators_get_plain_operations(name: str) -> None:
    """One module for all of them: what it has for each is in its text."""
    program, bounds = MADE[name]()
    capacities = program.backend.capacities({str(bound): n for bound, n in bounds.items()})
    module = program.backend.exported(capacities, PLATFORMS)
    assert module.platforms == tuple(PLATFORMS)
    text = module.mlir_module()
    assert "callback" not in text
    called = set(re.findall(r"stablehlo.custom_call @(\w+)", text))
    assert called <= {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}, called
    assert "ui64" not in text, "a sort packed into 64 bits"
    products = re.findall(r"stablehlo.dot_general.*", text)
    floats = [line for line in products if "xf32>" in line]
    assert floats, "there is nothing to look at"
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in floats), floats[0]
    made = {*re.findall(rf"stablehlo\.(\w+) .*-> tensor<{HELD.get(name)}>", text)}
    assert made == ({"broadcast_in_dim", "dynamic_update_slice"} if name in HELD else set()), made


def test_a_batch_of_texts_updates_its_cache_in_place() -> None:
    """The arrays that hold keys and values are made once; after that a step changes a slice of each."""
    program, bounds = decoder()
    text = _text((program, {bound: 1024 if str(bound) == "T" else n for bound, n in bounds.items()}), "cuda")
    made = re.findall(r"stablehlo\.(\w+) .*-> tensor<4x8x1024x4xf32>", text)
    assert sorted(made) == ["broadcast_in_dim", "broadcast_in_dim", "dynamic_update_slice", "dynamic_update_slice"]


@pytest.mark.parametrize("name", ["learner", "agent"])
def test_an_iteration_is_donated(name: str) -> None:
    """A run with checkpoints goes on from one call of XLA to the next in the same memory."""
    program, bounds = MADE[name]()
    shapes = {"x": (64, 8), "y": (64,), "w1": (8, 16), "w2": (16,)} if name == "learner" else {}
    given = {input: np.zeros(shape, "float32") for input, shape in shapes.items()}
    given |= program.params
    known = {symbol.name: 0 for symbol in program.compiled.loops.bounds} | {str(b): n for b, n in bounds.items()}
    texts = [text for text, _ in _units(program, given, known, 3)]
    assert texts
    for text in texts:
        assert "tf.aliasing_output" in text or "jax.buffer_donor" in text
        assert "callback" not in text


def test_the_cpu_keeps_its_own_forms() -> None:
    """The same program here: a barrier before tall products, and no precision asked for."""
    made = learner()
    here, there = _text(made, None), _text(made, "cuda")
    assert "optimization_barrier" in here
    assert "HIGHEST" not in here
    assert here.count("stablehlo.while") >= there.count("stablehlo.while")


def test_precision_is_a_choice() -> None:
    b, B = pr.dim("b")
    y = pr.input("x", (4,), (b,)) @ pr.input("w", (4, 4))
    assert "HIGHEST" not in pr.compile(y, precision="default").lowered({B: 8}, platform="cuda").text
    with pytest.raises(pr.errors.UnsupportedError):
        pr.compile(y, precision="float99")


def test_a_step_copies_no_buffer_and_is_donated() -> None:
    """A unit of a stream as an accelerator gets it: its state is donated, and buffers change by slices."""
    given = {"start": np.zeros(8, "float32"), "w": np.zeros((8, 8), "float32")}
    seen = _units(one_text(), given, {"T": 1024}, 4)
    assert any(buffers for _, buffers in seen)
    for text, buffers in seen:
        assert "tf.aliasing_output" in text or "jax.buffer_donor" in text
        for shape in buffers:
            made = re.findall(rf"stablehlo\.(\w+)\b.*-> tensor<{'x'.join(map(str, shape))}x", text)
            assert set(made) <= {"dynamic_update_slice"}, made


@pytest.mark.parametrize("batch", [1, 4])
def test_a_language_model_writes_in_place(batch: int) -> None:
    """A step of writing as an accelerator gets it: keys and values change by slices of donated buffers."""
    with tempfile.TemporaryDirectory() as folder:
        model = llm.load(llm.write_random(folder))
    run = model._run([np.arange(1, 21)] * batch, [200] * batch, sampling(model.config.vocabulary, (), temperature=1.0))
    assert run is not None
    program = run.generating.program
    known = program._caller.known_bounds(run.inputs, run.bounds)
    given = {name: array if hasattr(array, "shape") else np.float32(array) for name, array in run.inputs.items()}
    seen = _units(program, given, known, 4)
    kept = [shape for _, buffers in seen for shape in buffers if shape[-1] == model.config.head_size]
    assert kept, "no buffer of keys or values"
    for text, _ in seen:
        assert "tf.aliasing_output" in text or "jax.buffer_donor" in text
        assert "callback" not in text
        assert not re.findall(r"stablehlo.custom_call @(\w+)", text)
        for shape in {*kept}:
            made = re.findall(rf"stablehlo\.(\w+)\b.*-> tensor<{'x'.join(map(str, shape))}x", text)
            assert set(made) <= {"dynamic_update_slice"}, (shape, made)


def _units(
    program: pr.Program, given: dict[str, Any], bounds: dict[str, int], steps: int
) -> list[tuple[str, set[tuple[int, ...]]]]:
    """The XLA programs of some first iterations as CUDA gets them, and the shapes of the buffers in their state."""
    seen: list[tuple[str, set[tuple[int, ...]]]] = []
    backend = program.backend
    before = backend.executor.compiled

    def noting(advance: Any, arguments: tuple[Any, ...]) -> Any:
        with lowering_for(["cuda"]):
            function = jax.jit(lambda *arrays: advance.trace(*arrays), donate_argnums=advance.donated)
            module = jax.export.export(function, platforms=["cuda"])(*arguments)
        buffers = {array.shape for array in arguments[0].values() if array.size > LARGE}
        seen.append((module.mlir_module(), buffers))
        return before(advance, arguments)

    backend.executor.compiled = noting
    _, positions = backend.stepper.start(given, bounds, 0, lambda unit: 1)
    deque(islice(positions, steps), maxlen=0)
    return seen


def test_one_module_for_all_platforms(tmp_path: Any) -> None:
    program, bounds = learner()
    program.export(tmp_path, bounds=bounds, platforms=["cpu", *PLATFORMS])
    inputs: dict[str, Any] = {
        "x": np.ones((40, 8), "float32"),
        "y": np.ones(40, "float32"),
        "w1": np.full((8, 16), 0.1, "float32"),
        "w2": np.full(16, 0.1, "float32"),
    }
    found, expected = pr.load(tmp_path)(**inputs, bounds={"I": 6}), program(**inputs, bounds={"I": 6})
    for name, value in expected.items():
        assert np.allclose(found[name], value, rtol=1e-5, atol=1e-6), name


def test_costs_and_memory_of_what_xla_makes() -> None:
    b, B = pr.dim("b")
    program = pr.compile(pr.input("x", (8,), (b,)) @ pr.input("w", (8, 32)))
    found = program.lowered({B: 64})
    assert 2 * 64 * 8 * 32 <= found.cost["flops"] <= 2.5 * 64 * 8 * 32
    assert found.memory.arguments >= 4 * (64 * 8 + 8 * 32)
    assert found.memory.outputs >= 4 * 64 * 32
    assert found.memory.peak >= found.memory.arguments + found.memory.outputs
    assert found.collectives == []
    with pytest.raises(pr.errors.UnsupportedError, match="another platform"):
        program.lowered({B: 64}, platform="cuda").compiled
    with pytest.raises(pr.errors.MissingBoundError):
        program.lowered()


def test_device() -> None:
    b, _ = pr.dim("b")
    x = pr.input("x", (2,), (b,))
    program = pr.compile(x * 2, device=jax.devices()[0])
    assert program(x=np.ones((3, 2), "float32")).tolist() == [[2.0, 2.0]] * 3
    with pytest.raises(pr.errors.ShardingError):
        pr.compile(x * 2, device="nowhere")
    with pytest.raises(pr.errors.ShardingError):
        pr.compile(x * 2, device=jax.devices()[0], mesh=jax.make_mesh((1,), ("data",)))
