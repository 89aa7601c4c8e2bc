"""Programs on a mesh of all devices: equal to one device, and nothing that is spread is gathered."""

import tempfile
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import nn, optim
from polyrhythm.compiler.loops import growth
from tests.devices.mesh_programs import (
    DEVICES,
    HEADS,
    STENCILS,
    attention,
    close,
    collectives_of,
    counted,
    decoding,
    every_step,
    heat,
    mesh_of,
    normal,
    stencils,
    training,
    training_data,
)

RANDOM = np.random.default_rng(0)


def case_training() -> dict[str, int]:
    outputs, b, _, _, I = training()
    plain = pr.compile(outputs)
    program = pr.compile(outputs, mesh=mesh_of("data"), shard={b: "data"})
    for rows in (1, 5, 40, 64):
        data = training_data(rows)
        close(program(**data, bounds={I: 6}), plain(**data, bounds={I: 6}))
    kinds = counted(program)
    assert set(kinds) <= {"all-reduce"}, collectives_of(program)
    return kinds


def case_optimiser_of_the_library() -> dict[str, int]:
    b, B = pr.dim("b")
    i, I = pr.dim("i")
    model = nn.MLP([8, 16, 1], rng=np.random.default_rng(0))
    x, y = pr.input("x", (8,), (b,)), pr.input("y", (1,), (b,))
    weights = optim.over(i, model.parameters())
    loss = ((model.using(weights)(x) - y) ** 2).sum()[{b: slice(0, B)}].mean()
    optim.adamw(i, weights, optim.clip_by_global_norm(i, pr.grad(loss, weights), 1.0), 0.01)
    outputs = {"loss": loss[0:I], "last": {name: w[I] for name, w in weights.items()}}
    plain = pr.compile(outputs)
    program = pr.compile(outputs, mesh=mesh_of("data"), shard={b: "data"})
    data = {"x": normal(40, 8), "y": normal(40, 1)}
    close(program(**data, bounds={I: 5}), plain(**data, bounds={I: 5}))
    kinds = counted(program)
    assert set(kinds) <= {"all-reduce"}, collectives_of(program)
    return kinds


def case_fsdp() -> dict[str, int]:
    """Parameters and the state of the optimiser are spread; only parameters are gathered, gradients are summed."""
    outputs, b, _, _, I = training()
    plain = pr.compile(outputs)
    program = pr.compile(outputs, mesh=mesh_of("data"), shard={b: "data", "w1": ("data",), "w2": ("data",)})
    data = training_data(40)
    close(found := program(**data, bounds={I: 6}), plain(**data, bounds={I: 6}))
    spread = jax.tree.map(np.shape, found)
    assert spread["w1"] == (8, 16)
    for one in collectives_of(program):
        assert one.kind in ("all-reduce", "all-gather", "reduce-scatter"), one
        if one.kind == "all-gather":  # of a parameter, never of rows of the batch
            assert all(shape in ((8, 16), (16,)) for _, shape in one.shapes), one
    if DEVICES > 1:
        jax_data: dict[str, Any] = {name: jax.numpy.asarray(value) for name, value in data.items()}
        kept = program(**jax_data, bounds={I: 6})
        assert not kept["m1"].sharding.is_fully_replicated, kept["m1"].sharding
        assert not kept["w1"].sharding.is_fully_replicated, kept["w1"].sharding
    return counted(program)


def case_tensor_parallel_mlp() -> dict[str, int]:
    """Columns of the first matrix and rows of the second: one all-reduce, Megatron's pattern."""
    b, _ = pr.dim("b")
    x = pr.input("x", (8,), (b,))
    w1, w2 = pr.input("w1", (8, 32)), pr.input("w2", (32, 8))
    y = pr.tanh(x @ w1) @ w2
    data = {"x": normal(5, 8), "w1": normal(8, 32), "w2": normal(32, 8)}
    shard = {"w1": (None, "model"), "w2": ("model", None)}
    program = pr.compile(y, mesh=mesh_of("model"), shard=shard)
    close(program(**data), np.tanh(data["x"] @ data["w1"]) @ data["w2"], 1e-4)
    kinds = counted(program)
    assert kinds == ({"all-reduce": 1} if DEVICES > 1 else {}), collectives_of(program)
    both = pr.compile(y, mesh=mesh_of("data", "model"), shard={b: "data", **shard})
    close(both(**data), np.tanh(data["x"] @ data["w1"]) @ data["w2"], 1e-4)
    assert set(counted(both)) <= {"all-reduce"}, collectives_of(both)
    return kinds


def case_tensor_parallel_attention() -> dict[str, int]:
    y, b, _, data = attention()
    expected = pr.compile(y)(**data)
    program = pr.compile(y, mesh=mesh_of("model"), shard=HEADS)
    close(program(**data), expected)
    kinds = counted(program)
    assert set(kinds) <= {"all-reduce"}, collectives_of(program)
    # One of the results, and one that finds whether a row is finite.
    large = [one for one in collectives_of(program) if one.bytes > 4 * 8]
    assert len(large) == (1 if DEVICES > 1 else 0), large
    both = pr.compile(y, mesh=mesh_of("data", "model"), shard={b: "data", **HEADS})
    close(both(**data), expected)
    assert set(counted(both)) <= {"all-reduce"}, collectives_of(both)
    return kinds


def case_decode_by_sequence() -> dict[str, int]:
    h, b, _, T, data = decoding()
    plain = pr.compile(h)
    program = pr.compile(h, mesh=mesh_of("data"), shard={b: "data"})
    for rows, steps in ((40, 50), (5, 7), (1, 1)):
        given = {**data, "start": data["start"][:rows]}
        close(program(**given, bounds={T: steps}), plain(**given, bounds={T: steps}))
    assert counted(program) == {}, collectives_of(program)
    return counted(program)


def case_growing_buffers() -> dict[str, int]:
    """So many steps that the cache of keys and values grows on the way; texts are an axis here."""
    t, T = pr.dim("t")
    w = {n: pr.input(n, (16, 4)) for n in ("k", "v")}
    h = pr.recurrent((2 * DEVICES, 16), (t,))
    k, v = (h @ w[n] for n in ("k", "v"))
    weights = pr.softmax(pr.einsum("bi,sbi->bs", k, k[0 : t + 1]), axis=-1)
    mixed = pr.einsum("bs,sbi->bi", weights, v[0 : t + 1])
    h[0] = pr.input("start", (2 * DEVICES, 16))
    h[t + 1] = pr.tanh(0.5 * h + pr.tile(mixed, (1, 4)))
    with patch.object(growth, "worthwhile", lambda machine: 0):  # on any machine, however fast it copies
        program = pr.compile(h[T - 1], mesh=mesh_of("data"), shard={"start": ("data", None)})
    given = {"start": normal(2 * DEVICES, 16), "k": 0.3 * normal(16, 4), "v": 0.3 * normal(16, 4)}
    close(program(**given, bounds={T: 1100}), pr.compile(h[T - 1])(**given, bounds={T: 1100}))
    assert len(program.stats.compilations) > 1, "nothing grew"
    assert counted(program) == {}, collectives_of(program)
    return counted(program)


def case_decode_by_head() -> dict[str, int]:
    h, _, _, T, data = decoding()
    data["start"] = data["start"][:4]
    plain = pr.compile(h)
    program = pr.compile(h, mesh=mesh_of("model"), shard=HEADS)
    close(program(**data, bounds={T: 50}), plain(**data, bounds={T: 50}), 1e-4)
    for one in collectives_of(program):
        assert one.kind == "all-reduce", one
        assert max(one.bytes for one in collectives_of(program)) <= 4 * 16 * 4, one
    return counted(program)


def case_ring_attention() -> dict[str, int]:
    y, _, t, data = attention()
    program = pr.compile(y, mesh=mesh_of("data"), shard={t: "data"})
    close(program(**data), pr.compile(y)(**data))
    long = [one for one in collectives_of(program) if one.kind != "collective-permute" and one.bytes > 4 * 5]
    assert not long, long
    return counted(program)


def case_attention_along_the_sequence() -> dict[str, int]:
    """Ring attention: keys and values go round in blocks, and nothing as long as the sequence is gathered."""
    y, b, t, data = attention()
    plain = pr.compile(y)
    program = pr.compile(y, mesh=mesh_of("data"), shard={t: "data"})
    for steps in (40, 12, 5, 1):
        given = {**data, "x": normal(3, steps, 16)}
        close(program(**given), plain(**given))
    for one in collectives_of(program):
        assert one.kind == "collective-permute" or one.bytes <= 4 * 4, one  # whether each text is finite
    given["x"] = normal(3, 40, 16)
    program(**given)
    blocks = [one for one in collectives_of(program) if one.kind == "collective-permute"]
    assert DEVICES == 1 or {one.shapes[0][1][1] for one in blocks} <= {-(-n // DEVICES) for n in (40, 12, 5, 1)}, blocks
    given["x"][:, 7] = np.nan  # steps before it do not see it
    found = program(**given)
    assert np.isfinite(found[:, :7]).all()
    assert np.isnan(found[:, 7:]).all()
    if DEVICES % 2 == 0:
        both = pr.compile(y, mesh=mesh_of("data", "model"), shard={b: "data", t: "model"})
        close(both(**data), plain(**data))
        long = [one for one in collectives_of(both) if one.kind != "collective-permute" and one.bytes > 4 * 8]
        assert not long, long
    return counted(program)


def case_stencils() -> dict[str, dict[str, int]]:
    """Halo exchange: devices send the edges of what they have to their neighbours, and single steps to all."""
    found: dict[str, dict[str, int]] = {}
    for name, (y, dims) in stencils().items():
        plain = pr.compile(y)
        for steps in (40, 64):
            program = pr.compile(y, mesh=mesh_of("data"), shard=dict.fromkeys(dims, "data"))
            data = {"x": normal(steps, 4)}
            close(program(**data), plain(**data))
            found[name], talk = counted(program), collectives_of(program)
            assert {one.kind for one in talk} <= {"collective-permute", "all-reduce"}, (name, talk)
            edges = sorted(one.bytes // 16 for one in talk if one.kind == "collective-permute")
            single = sum(one.bytes // 16 for one in talk if one.kind == "all-reduce")
            if name == "one more":
                # The dim with one more step has larger blocks: of each, what the neighbours have comes from there.
                assert single <= 1, talk
                assert sum(edges) <= -(-(steps + 1) // DEVICES), talk
            elif DEVICES > 1:
                assert (edges, single) == STENCILS[name], (name, talk)
        for steps in (5, 3):  # where a device has fewer steps than are read beside its own
            data = {"x": normal(steps, 4)}
            close(program(**data), plain(**data))
    return found


def case_stencil_over_time() -> dict[str, int]:
    """Space is spread, time goes on step by step."""
    h, t = heat()
    plain, program = pr.compile(h), pr.compile(h, mesh=mesh_of("data"), shard={t: "data"})
    for steps in (40, 5, 1):
        data = {"x": normal(steps)}
        close(program(**data, bounds={"I": 20}), plain(**data, bounds={"I": 20}))
    for one in collectives_of(program):
        assert one.kind in ("collective-permute", "all-reduce"), one
        assert one.bytes <= 8, one
    return counted(program)


def case_turned() -> str:
    """Steps read from the end, and gradients of that: a loop over 1 .. T that fills what begins at 0."""
    t, T = pr.dim("t")
    x = pr.input("x", (4,), (t,))
    y = x + 0.5 * x[T - 1 - t]
    index = pr.argmax(y[0:T].sum(-1), 0)
    z = y + pr.take(y[0:T], index, 0)  # one row, whose gradient is one update of the device that has it
    z = z + 0.5 * z[T - 1 - t]
    outputs = {"z": z, "slope": pr.grad((z * z)[0:T].sum(), x)}
    program = pr.compile(outputs, mesh=mesh_of("data"), shard={t: "data"})
    for steps in (40, 17, 16, 8, 5, 1):
        rows = RANDOM.integers(-4, 5, (steps, 4)).astype("float32")
        found, expected = program(x=rows), pr.evaluate(outputs, {"x": rows})
        assert all(np.array_equal(found[name], expected[name]) for name in expected), steps
    return "ok"


def case_maxima() -> dict[str, int]:
    """The largest and the least over an axis that is spread, NaN and infinities included."""
    b, B = pr.dim("b")
    x = pr.input("x", (4,), (b,))
    outputs = {"max": x[0:B].max(0), "min": x[0:B].min(0), "softmax": pr.softmax(x[0:B], 0).sum(0)}
    program = pr.compile(outputs, mesh=mesh_of("data"), shard={b: "data"})
    for rows in (40, 5, 1):
        data = normal(rows, 4)
        data[rows // 2] = [np.nan, np.inf, -np.inf, 0.0]
        found, expected = program(x=data), pr.evaluate(outputs, {"x": data})
        for name, value in expected.items():
            assert np.allclose(found[name], value, equal_nan=True), (name, rows, found[name], value)
    kinds = counted(program)
    assert set(kinds) <= {"all-reduce"}, collectives_of(program)
    return kinds


def case_other_libraries() -> str:
    """Called inside a function that JAX traces, and with tensors of torch, at lengths that do not divide."""
    torch = pytest.importorskip("torch")
    b, B = pr.dim("b")
    x = pr.input("x", (4,), (b,))
    outputs = {"y": pr.tanh(x), "sum": x[0:B].sum(0)}
    program = pr.compile(outputs, mesh=mesh_of("data"), shard={b: "data"})
    for rows in (40, 5, 1):
        data = normal(rows, 4)
        expected = {"y": np.tanh(data), "sum": data.sum(0)}
        close(jax.jit(lambda x: program(x=x))(data), {name: expected[name] for name in sorted(expected)})
        if rows == 5:
            close(jax.grad(lambda x: program(x=x)["y"].sum())(data), 1 - np.tanh(data) ** 2)
        found = program(x=torch.tensor(data))
        assert all(isinstance(value, torch.Tensor) for value in found.values())
        close({name: value.numpy() for name, value in found.items()}, expected)
    return "ok"


def case_seeds() -> list[float]:
    b, _ = pr.dim("b")
    t, T = pr.dim("t")
    x = pr.input("x", (4,), (b,))
    y = pr.recurrent((4,), (b, t))
    y[b, 0] = x
    y[b, t + 1] = 0.5 * y + pr.normal((4,), dims=(b, t))
    program = pr.compile(y[b, T - 1], mesh=mesh_of("data"), shard={b: "data"})
    found = program(x=np.zeros((40, 4), "float32"), bounds={T: 9}, seed=3)
    assert np.array_equal(found, pr.compile(y[b, T - 1])(x=np.zeros((40, 4), "float32"), bounds={T: 9}, seed=3))
    return np.asarray(found).reshape(-1)[:8].tolist()


def case_streams() -> dict[str, int]:
    data = decoding()[-1]
    steps = every_step()
    plain, program = (
        pr.compile(steps[0], **how) for how in ({}, {"mesh": mesh_of("data"), "shard": {steps[1]: "data"}})
    )
    given = {**data, "start": data["start"][:5]}
    expected = plain(**given, bounds={steps[3]: 20})
    found = [np.asarray(step) for step in program.stream(over=steps[2], **given, bounds={steps[3]: 20})]
    close(np.stack(found, 1), expected)
    assert counted(program) == {}, collectives_of(program)
    return {"compilations": len(program.stats.compilations)}


def case_checkpoints() -> str:
    outputs, b, _, i, I = training()
    data = training_data(40)
    expected = pr.compile(outputs)(**data, bounds={I: 8})
    program = pr.compile(outputs, mesh=mesh_of("data"), shard={b: "data", "w1": (None, "data")})
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = pr.Checkpoints(folder, over=i, every=3)
        close(program(**data, bounds={I: 8}, checkpoint=checkpoints), expected)
        again = pr.compile(outputs, mesh=mesh_of("data"), shard={b: "data", "w1": (None, "data")})
        close(again(**data, bounds={I: 8}, checkpoint=checkpoints), expected)
    return "ok"


def case_probe() -> str:
    b, B = pr.dim("b")
    x = pr.input("x", (4,), (b,))
    squares = x * x
    program = pr.compile(squares[0:B].sum(0), mesh=mesh_of("data"), shard={b: "data"})
    data = normal(5, 4)
    close(program.probe(squares, x=data), data * data)
    close(program.probe(squares, at={b: 3}, x=data), (data * data)[3])
    return "ok"


def case_check_nan() -> str:
    b, B = pr.dim("b")
    x = pr.input("x", (4,), (b,))
    with pr.settings(check_nan=True):
        program = pr.compile(pr.log(x)[0:B].sum(0), mesh=mesh_of("data"), shard={b: "data"})
    data = np.abs(normal(5, 4))
    close(program(x=data), np.log(data).sum(0))
    data[3, 1] = -1.0
    with pytest.raises(pr.errors.NotFiniteError) as found:
        program(x=data)
    assert found.value.point == {"b": 3}
    return "ok"


def case_outputs_stay_spread() -> str:
    """40 rows on 8 devices are 5 each; arrays of NumPy come back whole."""
    b, _ = pr.dim("b")
    program = pr.compile(pr.tanh(pr.input("x", (4,), (b,))), mesh=mesh_of("data"), shard={b: "data"})
    found = program(x=jax.numpy.ones((40, 4)))
    assert {part.data.shape for part in found.addressable_shards} == {(40 // DEVICES, 4)}, found.sharding
    assert isinstance(program(x=np.ones((40, 4), "float32")), np.ndarray)
    return "ok"


def case_memory_is_per_device() -> dict[str, int]:
    h, b, _, T, _ = decoding()
    program = pr.compile(h, mesh=mesh_of("data"), shard={b: "data"})
    one = pr.compile(h, mesh=jax.make_mesh((1,), ("data",)), shard={b: "data"})
    B = next(bound for bound in program.compiled.loops.bounds if bound.name == "B")
    many, alone = (p.memory.peak({B: 64, T: 256}) for p in (program, one))
    assert DEVICES == 1 or many < 1.5 * alone / DEVICES, (many, alone)
    return {"each": many, "alone": alone}


def case_explain() -> str:
    outputs, b, _, _, I = training()
    program = pr.compile(outputs, mesh=mesh_of("data"), shard={b: "data"})
    assert "what devices say to each other is known after the first call" in program.explain()
    program(**training_data(40), bounds={I: 6})
    text = program.explain()
    assert f"b over data: {DEVICES} devices" in text, text
    assert DEVICES == 1 or "all-reduce of f32" in text, text
    return text[text.index("devices:") :][:400]


def case_refusals() -> list[str]:
    b, B = pr.dim("b")
    t, _T = pr.dim("t")
    x = pr.input("x", (5,), (b, t))
    w = pr.input("w", (5, 16))
    y = pr.recurrent((5,), (b, t))
    y[b, 0] = x[b, 0]
    y[b, t + 1] = pr.tanh(y) + x[b, t + 1]
    mesh = mesh_of("data")
    ways: list[tuple[type[Exception], str, Any]] = [
        (pr.errors.DependentStepsError, "needs", lambda: pr.compile(y, mesh=mesh, shard={t: "data"})),
        (pr.errors.ShardingError, "no axis", lambda: pr.compile(y, mesh=mesh, shard={b: "nowhere"})),
        (pr.errors.ShardingError, "is no axis", lambda: pr.compile(y, mesh=mesh, shard={b: 7})),
        (pr.errors.ShardingError, "which axis", lambda: pr.compile(x @ w, mesh=mesh, shard={"w": 7})),
        (pr.errors.ShardingError, "one device", lambda: pr.compile(y, backend="numpy", mesh=mesh, shard={b: "data"})),
        (pr.errors.ShardingError, "no mesh", lambda: pr.compile(y, shard={b: "data"})),
        (pr.errors.ShardingError, "no input is named", lambda: pr.compile(y, mesh=mesh, shard={"z": ("data",)})),
        (pr.errors.ShardingError, "which axis", lambda: pr.compile(x @ w, mesh=mesh, shard={"w": "data"})),
        (pr.errors.ShardingError, "3 entries", lambda: pr.compile(x @ w, mesh=mesh, shard={"w": (None, None, "data")})),
        (pr.errors.ShardingError, "twice", lambda: pr.compile(x @ w, mesh=mesh, shard={"w": ("data", "data")})),
        (pr.errors.ShardingError, "one input only", lambda: pr.compile(y, mesh=mesh, shard={"x": ("data",)})),
        (
            pr.errors.ShardingError,
            "cannot both be",
            lambda: pr.compile(y, mesh=mesh, shard={b: "data"}, schedule={b: pr.loop()}),
        ),
        (
            pr.errors.DeclarationError,
            "shard={z: 'data'} does not",
            lambda: pr.compile(y, mesh=mesh, shard={pr.dim("z")[0]: "data"}),
        ),
    ]
    (l, L), weights = pr.dim("l"), pr.input("weights", (5, 5))
    h = pr.recurrent((5,), ((l, L + 1), b, t))
    h[0] = x
    h[l + 1] = pr.tanh(h @ weights)
    called = pr.host(lambda value: value, [y], shape=(5,), dtype="float32")
    ways += [
        (pr.errors.DependentStepsError, "needs", lambda: pr.compile(h[L], mesh=mesh, shard={l: "data"})),
        (pr.errors.ShardingError, "host functions", lambda: pr.compile(called, mesh=mesh)),
    ]
    if DEVICES > 1:
        odd = 5 * DEVICES + 1
        ways += [
            (pr.errors.ShardingError, "equal parts", lambda: pr.compile(x @ w, mesh=mesh, shard={"w": ("data",)})),
            (
                pr.errors.ShardingError,
                "equal parts",
                lambda: pr.compile(y, bounds={B: odd}, mesh=mesh, shard={b: "data"}),
            ),
        ]
    texts = []
    for kind, words, compile in ways:
        with pytest.raises(kind) as found:
            compile()
        assert words in str(found.value)
        assert "fix: " in str(found.value)
        texts.append(str(found.value))
    return texts


def case_axes_inside() -> dict[str, int]:
    """An axis that the program makes itself, as that of environments, is spread where it is said to be."""
    t, T = pr.dim("t")
    h = pr.recurrent((40, 4), (t,))
    h[0] = pr.shard(pr.normal((40, 4), name="start"), 0, "data")
    h[t + 1] = pr.shard(pr.tanh(h) + 0.1 * pr.normal((40, 4), dims=(t,), name="noise"), 0, "data")
    outputs = {"all": h[T - 1], "mean": h[T - 1].mean()}
    program = pr.compile(outputs, mesh=mesh_of("data"))
    found = program(bounds={T: 9}, seed=5)
    close(found, pr.compile(outputs)(bounds={T: 9}, seed=5))
    kinds = counted(program)
    assert set(kinds) <= {"all-reduce"}, collectives_of(program)
    with pytest.raises(pr.errors.ShardingError):
        pr.compile(pr.shard(pr.input("x", (40,)), 0, "nowhere"), mesh=mesh_of("data"))
    if DEVICES > 1:
        with pytest.raises(pr.errors.ShardingError):
            pr.compile(pr.shard(pr.input("x", (5 * DEVICES + 1,)), 0, "data"), mesh=mesh_of("data"))
    return kinds
