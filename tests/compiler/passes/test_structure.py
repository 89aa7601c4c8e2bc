"""The rules about shapes, constants, masks and contractions, one test each, under the name of the rule."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.passes.notes import Notes
from polyrhythm.compiler.passes.simplify import simplify
from polyrhythm.compiler.passes.structure import STRUCTURAL
from polyrhythm.oracle import run
from tests.compiler.ir.parse import parse
from tests.compiler.ir.verify import verify
from tests.compiler.passes.cases import after, operations, rules

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7


def x() -> pr.Tensor:
    return pr.input("x", (2, 3, 4))


n, _ = pr.dim("n")


def steps() -> pr.Tensor:
    return pr.input("s", (4,), (n,))


CASES = {
    "reshape-twice": (lambda: pr.reshape(pr.reshape(x(), (6, 4)), (4, 6)), ["reshape"]),
    "broadcast-twice": (lambda: pr.broadcast_to(pr.broadcast_to(x(), (5, 2, 3, 4)), (6, 5, 2, 3, 4)), []),
    "transpose-twice": (lambda: pr.transpose(pr.transpose(x(), (1, 2, 0)), (1, 2, 0)), ["transpose"]),
    "slice-twice": (lambda: x().axes[:, 1:, 1:4:2].axes[1:, :, 1:], ["slice"]),
    "slice-of-broadcast": (lambda: pr.broadcast_to(x(), (5, 2, 3, 4)).axes[1:3], []),
    "slice-of-range": (lambda: pr.flip(steps()[0 : n + 1], 0).sum(0), ["reduce"]),
    "reshape-of-range": (lambda: pr.reshape(steps()[1:2], (4,)) * 2.0, ["mul"]),
    "reduce-twice": (lambda: x().sum(2).sum(0), ["reduce"]),
    "cast-twice": (lambda: pr.cast(pr.cast(pr.cast(x(), "int8"), "int32"), "float32"), ["cast", "cast"]),
    "drop-broadcast": (lambda: x() * pr.broadcast_to(m((4,), "d"), (2, 3, 4)), ["mul"]),
    "broadcast-last": (lambda: pr.exp(pr.broadcast_to(x().sum(), (5,))), ["exp", "reduce"]),
    "fold-constants": (lambda: x() + pr.exp(pr.constant(np.float32(1.0))) * 2, ["add"]),
    "reassociate": (lambda: (m((50, 2), "a") @ m((2, 50), "b")) @ m((50,), "c"), ["einsum", "einsum"]),
    "reshape-of-contraction": (lambda: pr.reshape(m((3, 4), "a") @ pr.reshape(m((4,), "d"), (4, 1)), (3,)), None),
    "recognise-matmul": (
        lambda: (pr.reshape(m((3, 4), "a"), (3, 1, 4)) * pr.reshape(m((5, 4), "b"), (1, 5, 4))).sum(2),
        None,
    ),
}


def m(shape: tuple[int, ...], name: str) -> pr.Tensor:
    return pr.input(name, shape)


@pytest.mark.parametrize("rule", CASES)
def test_rule(rule: str) -> None:
    build, left = CASES[rule]
    output = build()
    random = np.random.default_rng(0)
    shapes = (
        {"a": (50, 2), "b": (2, 50), "c": (50,)} if rule == "reassociate" else {"a": (3, 4), "b": (5, 4), "d": (4,)}
    )
    given = {
        "x": X,
        "s": X[0],
        **{name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
    }
    used = {name: given[name] for name in given if name in _inputs(output)}
    graph, notes = after([output], used)
    assert rule in rules(notes)
    if left is not None:
        assert operations(graph) == left


def _inputs(output: pr.Tensor) -> set[str]:
    from polyrhythm.compiler.trace import trace

    return set(trace([output]).inputs)


NOTHING = {
    "reshape(x, shape=(2, 3))": "same-shape",
    "transpose(x, axes=(0, 1))": "same-shape",
    "slice(x, starts=(0, 0), lengths=(2, 3), steps=(1, 1))": "same-shape",
    "pad(x, before=(0, 0), after=(0, 0), value=0)": "same-shape",
    'reduce(x, monoid="sum", axes=())': "same-shape",
    "cast(x, dtype=f32)": "same-dtype",
    "concat(x, axis=0)": "concat-of-one",
}


@pytest.mark.parametrize("written", NOTHING)
def test_an_operation_that_does_nothing(written: str) -> None:
    """The language leaves out most of these by itself; passes and gradients make them."""
    graph, notes = parse(f'x: f32[2, 3] = input(name="x")\n\ny: f32[2, 3] = {written}\n\noutput y'), Notes()
    verify(graph)
    changed = simplify(graph, notes)
    verify(changed)
    assert [note.rule for note in notes] == [NOTHING[written]]
    assert [d.op for node in changed for d in node.definitions] == ["input", "copy"]


def test_choose_proved() -> None:
    t, _ = pr.dim("t")
    y = pr.input("y", (), (t,))
    output = pr.where(pr.value(t >= 0), y, 0.0)
    graph, notes = after([output], {"y": np.arange(3.0, dtype=np.float32)})
    assert "choose-proved" in rules(notes)
    assert "select" not in operations(graph)


def test_contract_transposed() -> None:
    t, _ = pr.dim("t")
    a, b = pr.input("a", (4, 3), (t,)), pr.input("b", (4, 5), (t,))
    given = {"a": np.random.default_rng(0).normal(size=(2, 4, 3)), "b": np.random.default_rng(1).normal(size=(2, 4, 5))}
    given = {name: value.astype(np.float32) for name, value in given.items()}
    graph, notes = after([pr.transpose(a, (1, 0)) @ b], given)
    assert "contract-transposed" in rules(notes)
    assert operations(graph) == ["einsum"]


def test_take_of_codes() -> None:
    t, _ = pr.dim("t")
    codes, scales = pr.input("codes", (5, 4), (), "int8"), pr.input("scales", (5, 2), (), "float16")
    rng = np.random.default_rng(0)
    given = {"codes": rng.integers(-9, 9, (5, 4)).astype("int8"), "scales": rng.random((5, 2)).astype("float16")}
    given["row"] = np.array([4, 0, 7])
    rows = pr.take(pr.dequantize(codes, scales), pr.input("row", (), (t,), "int64"), 0)
    graph, notes = after([rows], given)
    assert "take-of-codes" in rules(notes)
    assert sorted(operations(graph)) == ["dequantize", "take", "take"]


@pytest.mark.parametrize("spelling", ["past", "all", "point", "along", "reshaped"])
def test_take_of_cast(spelling: str) -> None:
    """Images stay bytes until a minibatch of them is read."""
    (t, T), (i, _) = pr.dim("t"), pr.dim("i")
    images = pr.input("images", (3,), (t,), "uint8")
    seen = pr.cast(images, "float32")
    at = pr.input("at", (2,), (i,), "int64")
    given = {"images": np.arange(15, dtype="u1").reshape(5, 3), "at": np.array([[4, 0], [1, 2]])}
    if spelling == "past":
        rows, given["at"] = pr.take(seen[0 : t + 1], pr.input("at", (2,), (t,), "int64"), 0), np.zeros((5, 2), "i8")
    elif spelling == "all":
        rows = pr.take(seen[0:T], at, 0)
    elif spelling == "point":
        rows = pr.take(seen[T - 1], at, 0)
        given["at"] = np.array([[2, 0], [1, 2]])
    elif spelling == "along":
        rows = pr.gather(seen[0:T], pr.unsqueeze(at, 1) + pr.zeros((2, 3), dtype="int64"), 0)
    else:
        rows = pr.take(pr.reshape(seen[0:T], (3 * T,)), at, 0)
    graph, notes = after([rows], given)
    if spelling != "reshaped":
        assert "take-of-cast" in rules(notes)
        narrow = [node for node in graph if node.only is not None and node.only.op in ("take", "take_along")]
        assert [node.dtype.name for node in narrow] == ["uint8"]


def test_take_of_a_narrower_cast_stays() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (), (t,))
    _, notes = after([pr.take(pr.cast(x, "float16")[0:T], pr.input("at", (), (), "int64"), 0)],
                         {"x": np.ones(3, "f4"), "at": np.array(1)})  # fmt: skip
    assert "take-of-cast" not in rules(notes)


def test_a_weight_is_transposed_once_outside_the_loop() -> None:
    t, _ = pr.dim("t")
    a, w = pr.input("a", (4,), (t,)), pr.input("w", (3, 4))
    _, notes = after([a @ pr.transpose(w, (1, 0))], {"a": np.ones((2, 4), "f4"), "w": np.ones((3, 4), "f4")})
    assert "contract-transposed" not in rules(notes)


def test_slice_of_contraction() -> None:
    text = """
    bound T
    dim t < T

    a: f32[T, 4] = input(name="a")

    b: f32[4, 5] = input(name="b")

    c: f32[T, 5] = einsum(a, b, spec="ij,jk->ik")

    y: f32[1, 5] over t < T = slice(c, starts=(t, 0), lengths=(1, 5), steps=(1, 1))

    output y
    """
    graph, notes = parse(textwrap.dedent(text)), Notes()
    changed = simplify(graph, notes)
    verify(changed)
    assert [note.rule for note in notes] == ["slice-of-contraction"]
    given = {"a": X.reshape(6, 4), "b": X.reshape(-1)[:20].reshape(4, 5)}
    np.testing.assert_allclose(np.asarray(run(changed, given)[0]), np.asarray(run(graph, given)[0]), rtol=1e-5)


def test_merge_pieces() -> None:
    t, _ = pr.dim("t")
    a = pr.input("a", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = a[0]
    y[t + 1] = a[t + 1]
    graph, notes = after([y * 2], {"a": np.arange(4.0, dtype=np.float32)})
    assert "merge-pieces" in rules(notes)
    assert not any(node.recurrent for node in graph)


def test_merge_pieces_of_which_others_remain() -> None:
    t, T = pr.dim("t")
    a = pr.input("a", (), (t,))
    y = pr.recurrent((), (t,))
    y[0] = a[0]
    y[(t > 0) & (t < T - 1)] = a * 3
    y[(t > 0) & (t >= T - 1)] = a
    graph, notes = after([y * 2], {"a": np.arange(1.0, 5.0, dtype=np.float32)})
    assert "merge-pieces" in rules(notes)
    (pieces,) = [node.definitions for node in graph if len(node.definitions) > 1]
    assert len(pieces) == 2


def test_every_rule_has_a_test() -> None:
    tested = {
        *CASES,
        *NOTHING.values(),
        "choose-proved",
        "contract-transposed",
        "slice-of-contraction",
        "take-of-codes",
        "take-of-cast",
    }
    assert {name for name, _, _ in STRUCTURAL} == tested
