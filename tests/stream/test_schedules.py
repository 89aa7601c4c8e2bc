"""Schedules give the program's values or are refused: small programs by hand, and random ones.

The long form of the random part is `make fuzz-streams`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.stream import (
    DirectiveMismatch,
    Hardware,
    lower,
    measure,
    parallelize,
    simulate,
    tile,
    time_multiplex,
)
from polyrhythm.stream.directives import Directive, Policy
from tests.stream.schedules import check

DEEP = Hardware(fifo_depth=4096)
POLICIES: list[Policy] = ["coarse", "interleave", "dynamic"]
b, B = pr.dim("b")
q, Q = pr.dim("q")
e, E = pr.dim("e")
m, M = pr.dim("m")
n, N = pr.dim("n")
k, K = pr.dim("k")
table = pr.input("table", (2,), (e,))
number = pr.input("number", (), (b,), "int32")
x = pr.input("x", (2,), (b,))
grid_a = pr.input("grid_a", (), (m, n))
grid_b = pr.input("grid_b", (), (m, n))
ROWS = np.array([[1, 2], [10, 20], [100, 200]], np.float32)
X = np.arange(8, dtype=np.float32).reshape(4, 2)


def _run(output: Any, schedule: list[Directive], inputs: dict[str, Any]) -> np.ndarray:
    """The values, after a look at the formulae."""
    lowered = lower(output, schedule, inputs)
    run = simulate(lowered.program, DEEP)
    values = measure(lowered.program, DEEP).evaluate(run.bindings)
    assert values["off_chip_burst"] == run.bytes_moved
    assert values["flops"] == run.flops
    return lowered.outputs(run)


@pytest.mark.parametrize("schedule", [[tile(b, 2)], [tile(b, 1)], [tile(b, dynamic=True)], []])
def test_an_embedding_lookup(schedule: list[Directive]) -> None:
    numbers = np.array([2, 0, 1, 2], np.int32)
    given = {"table": ROWS, "number": numbers}
    part = pr.take(table[0:E], number, 0)
    for output, expected in [(part, ROWS[numbers]), (pr.relu(part), ROWS[numbers]), (part * 2, 2 * ROWS[numbers])]:
        np.testing.assert_array_equal(_run(output, schedule, given), expected)


@pytest.mark.parametrize("schedule", [[tile(b, 2)], [tile(q, 3)], [tile(b, 2), tile(q, dynamic=True)]])
def test_bags_of_embeddings(schedule: list[Directive]) -> None:
    bag = pr.input("bag", (), (b, q), "int32")
    numbers = np.array([[2, 0, 0], [1, 1, 1], [0, 1, 2], [2, 2, 1]], np.int32)
    output = pr.take(table[0:E], bag, 0)[{q: slice(0, Q)}].sum(0)
    np.testing.assert_array_equal(_run(output, schedule, {"table": ROWS, "bag": numbers}), ROWS[numbers].sum(1))


@pytest.mark.parametrize("schedule", [[tile(b, 2)], [tile(b, dynamic=True)], [tile(b, 2), time_multiplex(e, 1)]])
@pytest.mark.parametrize("same", [True, False])
def test_two_routings_in_turn(schedule: list[Directive], same: bool) -> None:
    """An adapter, an expert and the adapter again; the tables have equally many parts, or the same dim."""
    other, O = pr.dim("other")
    adapters = pr.input("adapters", (2, 2), (e,))
    experts = pr.input("experts", (2, 2), (e if same else other,))
    second = pr.input("second", (), (b,), "int32")
    weights = [np.random.default_rng(seed).normal(size=(3, 2, 2)).astype(np.float32) for seed in (1, 2)]
    one, two = np.array([0, 1, 1, 2], np.int32), np.array([2, 2, 0, 2], np.int32)
    adapter = pr.take(adapters[0:E], number, 0)
    expert = pr.take(experts[0 : (E if same else O)], second, 0)
    output = pr.matmul(pr.matmul(pr.matmul(x, adapter), expert), adapter)
    given = {"x": X, "adapters": weights[0], "experts": weights[1], "number": one, "second": two}
    expected = np.array([X[i] @ weights[0][one[i]] @ weights[1][two[i]] @ weights[0][one[i]] for i in range(4)])
    np.testing.assert_allclose(_run(output, schedule, given), expected, rtol=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("regions", [1, 2, 3])
def test_a_dealt_dim_that_is_not_the_first(policy: Policy, regions: int) -> None:
    one, two = np.arange(9, dtype=np.float32).reshape(3, 3), np.full((3, 3), 2, np.float32)
    schedule: list[Directive] = [tile(m, dynamic=True), parallelize(n, regions, policy, 1)]
    np.testing.assert_array_equal(_run(grid_a * grid_b, schedule, {"grid_a": one, "grid_b": two}), 2 * one)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [1, 2, 4, None])
def test_tiles_are_dealt_where_a_dim_has_both(policy: Policy, size: int | None) -> None:
    schedule: list[Directive] = [tile(b, dynamic=True) if size is None else tile(b, size), parallelize(b, 2, policy, 1)]
    np.testing.assert_array_equal(_run(x * 2, schedule, {"x": X}), 2 * X)
    if size == 2:
        assert str(lower(x * 2, schedule, {"x": X}).program).count("tile[2,2]") > 1


@pytest.mark.parametrize("policy", POLICIES)
def test_values_come_and_go_in_the_order_of_entries(policy: Policy) -> None:
    """What is computed before entries are dealt out, what all share, and what is done with all of them after."""
    total = pr.recurrent((2,), (b,))
    total[0] = x[0]
    total[b + 1] = total + x[b + 1]
    largest = x[0:B].max(0)
    output = (pr.relu(total) * largest)[{b: slice(0, B)}].sum(0)
    expected = (np.cumsum(X, 0) * X.max(0)).sum(0)
    np.testing.assert_allclose(_run(output, [parallelize(b, 3, policy, 1)], {"x": X}), expected)


def test_blocks_are_dealt_in_turn() -> None:
    """Blocks of two over two regions: the third block goes to the first region again."""
    six = np.arange(12, dtype=np.float32).reshape(6, 2)
    lowered = lower(x * 2, [parallelize(b, 2, "coarse", block=2)], {"x": six})
    run = simulate(lowered.program, DEEP)
    np.testing.assert_array_equal(lowered.outputs(run), 2 * six)
    assert np.asarray(run.bindings["bs_of_region"]).tolist() == [4, 2]


@pytest.mark.parametrize(("tiles", "shape"), [((2, 3, 2), (4, 6, 4)), ((1, 2, 4), (3, 4, 4)), ((4, 2, 1), (4, 6, 3))])
def test_output_tiles_of_two_dims(tiles: tuple[int, int, int], shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    a = pr.input("a", (), (m, k))
    w = pr.input("w", (), (k, n))
    one, two = rng.normal(size=(shape[0], shape[2])), rng.normal(size=(shape[2], shape[1]))
    given = {"a": one.astype(np.float32), "w": two.astype(np.float32)}
    product = pr.einsum("k,k->", a[{k: slice(0, K)}], w[{k: slice(0, K)}])
    schedule: list[Directive] = [tile(m, tiles[0]), tile(n, tiles[1]), tile(k, tiles[2])]
    np.testing.assert_allclose(_run(product, schedule, given), one @ two, atol=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("schedule", [[], [tile("s", 2)], [tile("h", dynamic=True)], [tile("s", dynamic=True)]])
def test_heads_as_a_dim_of_dealt_requests(policy: Policy, schedule: list[Directive]) -> None:
    """Two walked dims, of which one ends where the cache of a request ends."""
    rng = np.random.default_rng(3)
    r = pr.dim("r")[0]
    h = pr.dim("h")[0]
    s, S = pr.dim("s")
    query, keys = pr.input("query", (4,), (r, h)), pr.input("keys", (4,), (r, h, s))
    length = pr.input("length", (), (r,), "int32")
    score = pr.where(pr.value(s) < length, pr.einsum("d,d->", query, keys), float("-inf"))
    weight = pr.exp(score - score[{s: slice(0, S)}].max(0))
    output = pr.einsum("s,sd->d", weight[{s: slice(0, S)}], keys[{s: slice(0, S)}]) / weight[{s: slice(0, S)}].sum(0)
    q, c = rng.normal(size=(3, 2, 4)).astype(np.float32), rng.normal(size=(3, 2, 4, 4)).astype(np.float32)
    lengths = np.array([4, 1, 3], np.int32)
    expected = np.zeros((3, 2, 4))
    for i in range(3):
        for j in range(2):
            scores = np.exp(c[i, j, : lengths[i]] @ q[i, j])
            expected[i, j] = scores @ c[i, j, : lengths[i]] / scores.sum()
    given = {"query": q, "keys": c, "length": lengths}
    found = _run(output, [parallelize("r", 2, policy, 1), *schedule], given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policies", [*((policy, policy) for policy in POLICIES), ("coarse", "interleave")])
@pytest.mark.parametrize("schedule", [[], [tile("s", 2)], [tile("r", 2)], [tile("h", dynamic=True)]])
def test_requests_and_heads_are_dealt_out(policies: tuple[Policy, Policy], schedule: list[Directive]) -> None:
    """A region for each pair of regions; caches end where the request ends, and new rows are written in place."""
    rng = np.random.default_rng(7)
    r, h = pr.dim("r")[0], pr.dim("h")[0]
    s, S = pr.dim("s")
    query, old = pr.input("query", (4,), (r, h)), pr.input("keys", (4,), (r, h, s))
    length = pr.input("length", (), (r,), "int32")
    whole = {s: slice(0, S)}
    keys = pr.where(pr.value(s) == length, pr.input("key", (4,), (r, h)), old)
    score = pr.where(pr.value(s) <= length, pr.einsum("d,d->", query, keys), float("-inf"))
    weight = pr.exp(score - score[whole].max(0))
    output = pr.einsum("s,sd->d", weight[whole], keys[whole]) / weight[whole].sum(0)
    given = {"query": (4, 2, 4), "keys": (4, 2, 6, 4), "key": (4, 2, 4)}
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in given.items()}
    values["length"] = np.array([5, 0, 2, 3], np.int32)
    dealt: list[Directive] = [parallelize("r", 2, policies[0], 1), parallelize("h", 2, policies[1], 1)]
    outputs = {"output": output, "keys": keys} if schedule in ([], [tile("s", 2)]) else {"output": output}
    expected = pr.evaluate(outputs, values)
    found = _run(outputs, [*dealt, *schedule], values)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    program = lower(outputs, [*dealt, *schedule], values).program
    assert max(node.copies for node in program.nodes if node.name == "load keyss") == 4


def test_three_dims_are_dealt_out() -> None:
    rng = np.random.default_rng(8)
    one, two = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(3, 2)).astype(np.float32)
    left, right = pr.input("left", (4,), (m, n)), pr.input("right", (), (n, k))
    for policy in POLICIES:
        dealt: list[Directive] = [parallelize(d, 2, policy, 1) for d in (m, n, k)]
        found = _run(left * right, dealt, {"left": one, "right": two})
        np.testing.assert_allclose(found, one[:, :, None] * two[:, :, None], rtol=1e-5)


def test_some_regions_that_take_and_some_that_wait_are_refused() -> None:
    given = {"grid_a": np.ones((2, 2), np.float32), "grid_b": np.ones((2, 2), np.float32)}
    with pytest.raises(DirectiveMismatch, match="all of the dims dynamically, or none"):
        lower(grid_a * grid_b, [parallelize(m, 2, "dynamic"), parallelize(n, 2, "coarse")], given)


@pytest.mark.parametrize("tiles", [(2, 2), (3, 2), (2, None), (None, 3), (None, None)])
@pytest.mark.parametrize("dealt", [[], [parallelize("b", 2, "dynamic")], [parallelize("b", 3, "interleave")]])
def test_prefill_in_tiles_of_queries_and_keys(tiles: tuple[int | None, int | None], dealt: list[Directive]) -> None:
    """Causal attention of all positions to all: a tile of queries meets the tiles of keys."""
    rng = np.random.default_rng(9)
    query, key, row = pr.input("query", (4,), (b,)), pr.input("key", (4,), (q,)), pr.input("row", (4,), (q,))
    score = pr.where(pr.value(q) <= pr.value(b), pr.einsum("d,d->", query, key), float("-inf"))
    weights = pr.exp(score - score[{q: slice(0, Q)}].max(0))[{q: slice(0, Q)}]
    output = pr.einsum("s,sd->d", weights, row[{q: slice(0, Q)}]) / weights.sum(0)
    given = {name: rng.normal(size=(6, 4)).astype(np.float32) for name in ("query", "key", "row")}
    scores = np.where(np.tri(6, dtype=bool), given["query"] @ given["key"].T, -np.inf)
    soft = np.exp(scores - scores.max(1, keepdims=True))
    expected = soft @ given["row"] / soft.sum(1, keepdims=True)
    schedule = [tile(d, n) if n is not None else tile(d, dynamic=True) for d, n in zip((b, q), tiles, strict=True)]
    np.testing.assert_allclose(_run(output, [*schedule, *dealt], given), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", [[tile(b, 2), tile(n, 3)], [tile(b, 2), tile(n, 2), tile(k, 1)], [tile(n, 3)]])
def test_convolutions_in_tiles_of_images_and_filters(schedule: list[Directive]) -> None:
    """Images and filters are dims, and so are the channels that are summed over: (m, n, k) as for matrices."""
    rng = np.random.default_rng(10)
    image, weight = pr.input("image", (8,), (b, k)), pr.input("weight", (3,), (n, k))
    shifted = pr.stack([image.axes[place : place + 6] for place in range(3)], 0)
    output = pr.einsum("ckp,ck->p", shifted[{k: slice(0, K)}], weight[{k: slice(0, K)}])
    given = {"image": rng.normal(size=(4, 2, 8)), "weight": rng.normal(size=(6, 2, 3))}
    expected = np.zeros((4, 6, 6))
    for i, j, channel in np.ndindex(4, 6, 2):
        expected[i, j] += np.correlate(given["image"][i, channel], given["weight"][j, channel])
    found = _run(output, schedule, {name: array.astype(np.float32) for name, array in given.items()})
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["batch first", "steps first"])
@pytest.mark.parametrize("start", ["literal", "own row", "shared state"])
@pytest.mark.parametrize("rows", [1, 2, 4, None])
def test_batch_tiles_of_a_recurrence(order: str, start: str, rows: int | None) -> None:
    """A tile holds the states of several sequences; the weights are multiplied once a tile and step."""
    rng = np.random.default_rng(5)
    dims = (b, q) if order == "batch first" else (q, b)
    given = {"x": rng.normal(size=(4, 5, 3) if dims[0] is b else (5, 4, 3)), "w": 0.3 * rng.normal(size=(3, 3))}
    series = given["x"] if dims[0] is b else given["x"].swapaxes(0, 1)
    inputs = pr.input("x", (3,), dims)
    state = pr.recurrent((3,), dims)
    first = {"literal": np.ones(3, np.float32), "own row": inputs[{q: 0}], "shared state": pr.input("first", (3,))}
    given |= {"first": rng.normal(size=3)} if start == "shared state" else {}
    state[{q: 0}] = first[start]
    state[{q: q + 1}] = pr.tanh(pr.matmul(state, pr.input("w", (3, 3))) + inputs[{q: q + 1}])
    expected = [series[:, 0] if start == "own row" else np.tile(given.get("first", np.ones(3)), (4, 1))]
    for step in range(1, 5):
        expected.append(np.tanh(expected[-1] @ given["w"] + series[:, step]))
    schedule: list[Directive] = [tile(b, rows) if rows is not None else tile(b, dynamic=True)]
    given = {name: array.astype(np.float32) for name, array in given.items()}
    found = _run(state, schedule, given)
    np.testing.assert_allclose(found if dims[0] is b else found.swapaxes(0, 1), np.stack(expected, 1), atol=1e-4)
    last = _run(state[{q: Q - 1}], schedule, given)
    np.testing.assert_allclose(last, expected[-1], atol=1e-4)
    with pytest.raises(DirectiveMismatch, match="depends on its own earlier steps"):
        lower(state, [*schedule, tile(q, 1)], given)


@pytest.mark.parametrize("schedule", [[tile(m, 2)], [tile(n, 3)], [tile(m, 2), tile(k, 2)], [tile(k, dynamic=True)]])
def test_tiles_of_any_dims_of_an_input(schedule: list[Directive]) -> None:
    """Tiles of outer dims are boxes whose rows are no neighbours in memory."""
    cube = pr.input("cube", (2,), (m, n, k))
    values = np.arange(4 * 3 * 4 * 2, dtype=np.float32).reshape(4, 3, 4, 2)
    np.testing.assert_array_equal(
        _run(cube[{k: slice(0, K)}].sum(0) * 2, schedule, {"cube": values}), values.sum(2) * 2
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dims", ["kn", "nk"])
@pytest.mark.parametrize("schedule", [[], [tile(n, 3), tile(k, 2)], [tile(m, 2), tile(k, dynamic=True)]])
def test_a_dealt_product_of_matrices(policy: Policy, dims: str, schedule: list[Directive]) -> None:
    rng = np.random.default_rng(5)
    a = pr.input("a", (), (m, k))
    w = pr.input("w", (), (k, n) if dims == "kn" else (n, k))
    one, two = rng.normal(size=(4, 4)).astype(np.float32), rng.normal(size=(4, 6)).astype(np.float32)
    given = {"a": one, "w": two if dims == "kn" else two.T.copy()}
    product = pr.einsum("k,k->", a[{k: slice(0, K)}], w[{k: slice(0, K)}])
    found = _run(product, [parallelize(m, 2, policy, 1), *schedule], given)
    np.testing.assert_allclose(found, one @ two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", [[tile(b, 2)], [tile(b, dynamic=True)], [time_multiplex(e, 1), tile(b, 3)]])
@pytest.mark.parametrize("dealt", [False, True])
def test_folds_of_nothing_are_packed_like_others(schedule: list[Directive], dealt: bool) -> None:
    """A request without rows, and rows that lie in tiles of several: one sum each goes to its expert."""
    s, S = pr.dim("s")
    rows, length = pr.input("rows", (2,), (b, s)), pr.input("length", (), (b,), "int32")
    parts = pr.input("parts", (2, 2), (e,))
    total = pr.where(pr.value(s) < length, rows, 0.0)[{s: slice(0, S)}].sum(0)
    output = pr.matmul(total, pr.take(parts[0:E], number, 0))
    rng = np.random.default_rng(7)
    given = {"rows": rng.normal(size=(4, 4, 2)).astype(np.float32), "length": np.array([0, 3, 1, 0], np.int32)}
    given |= {"parts": rng.normal(size=(3, 2, 2)).astype(np.float32), "number": np.array([1, 0, 1, 2], np.int32)}
    sums = np.array([given["rows"][i, : given["length"][i]].sum(0) for i in range(4)])
    expected = np.einsum("bd,bde->be", sums, given["parts"][given["number"]])
    if dealt:
        schedule = [time_multiplex(e, 1), parallelize(b, 2)]
    np.testing.assert_allclose(_run(output, [*schedule, tile("s", 2)], given), expected, rtol=1e-4, atol=1e-5)


WRONG: dict[str, Any] = {
    "tile of nothing": lambda: tile(b, 0),
    "negative tile": lambda: tile(b, -2),
    "tile of a float": lambda: tile(b, 2.0),  # type: ignore[arg-type]
    "tile of a truth": lambda: tile(b, True),
    "no regions": lambda: parallelize(b, 0),
    "negative regions": lambda: parallelize(b, -1),
    "half a region": lambda: time_multiplex(e, 1.5),  # type: ignore[arg-type]
    "no block": lambda: parallelize(b, 2, "coarse", 0),
    "no policy": lambda: parallelize(b, 2, "fair"),  # type: ignore[arg-type]
    "no dim": lambda: tile(3, 2),  # type: ignore[arg-type]
    "both": lambda: tile(b, 2, dynamic=True),
    "a string": lambda: lower(x * 2, "tile", {"x": X}),  # type: ignore[arg-type]
    "a string in a list": lambda: lower(x * 2, ["tile"], {"x": X}),  # type: ignore[list-item]
    "no list": lambda: lower(x * 2, tile(b, 2), {"x": X}),  # type: ignore[arg-type]
    "nothing to multiplex": lambda: lower(x * 2, [time_multiplex(b, 2)], {"x": X}),
    "a table that is only looked up": lambda: lower(
        pr.take(table[0:E], number, 0), [time_multiplex(e, 1)], {"table": ROWS, "number": np.array([0, 1], np.int32)}
    ),
    "tiles of parts": lambda: lower(
        x * pr.take(table[0:E], number, 0),
        [tile(e, 3), tile(b, 2)],
        {"x": X, "table": ROWS, "number": np.array([0, 1, 1, 0], np.int32)},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_or_has_no_effect_is_refused(name: str) -> None:
    with pytest.raises(DirectiveMismatch) as caught:
        WRONG[name]()
    assert "test_schedules.py" in str(caught.value)


def test_a_refusal_says_what_works() -> None:
    with pytest.raises(DirectiveMismatch) as caught:
        lower(x * 2, [tile(b, 2), time_multiplex(b, 2)], {"x": X})
    assert caught.value.works == (tile(b, 2),)
    assert "or leave out time_multiplex('b', 2); tile('b', 2) works" in str(caught.value)


@pytest.mark.parametrize("first", range(0, 120, 12))
def test_random_schedules(first: int) -> None:
    for seed in range(first, first + 12):
        assert check(seed) in ("ok", "refused")
