"""Dynamic programming over two dims: alignments (diagonal reads) and intervals (reads in both directions)."""

from __future__ import annotations

import numpy as np

import polyrhythm as pr
from tests.programs.case import EDGES, Arrays, Bounds, Built, Case, steps


def build_edit_distance() -> Built:
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    a = pr.input("a", (), (i,), "int32")
    b = pr.input("b", (), (j,), "int32")
    d = pr.recurrent((), ((i, I + 1), (j, J + 1)), "int32")
    d[i == 0] = pr.value(j)
    d[(j == 0) & (i > 0)] = pr.value(i)
    replaced = d + pr.where(a == b, 0, 1)
    d[i + 1, j + 1] = pr.minimum(replaced, pr.minimum(d[i, j + 1], d[i + 1, j]) + 1)
    return Built({"table": d, "distance": d[I, J]})


def edit_distance(inputs: Arrays, bounds: Bounds) -> Arrays:
    a, b = inputs["a"], inputs["b"]
    d = np.zeros((len(a) + 1, len(b) + 1), "int32")
    for i in range(len(a) + 1):
        for j in range(len(b) + 1):
            if i == 0 or j == 0:
                d[i, j] = i + j
            else:
                d[i, j] = min(d[i - 1, j - 1] + (a[i - 1] != b[j - 1]), d[i - 1, j] + 1, d[i, j - 1] + 1)
    return {"table": d, "distance": d[-1, -1]}


def build_common_subsequence() -> Built:
    """Defined by a condition and the rest, from the back."""
    i, I = pr.dim("i")
    j, J = pr.dim("j")
    a = pr.input("a", (), (i,), "int32")
    b = pr.input("b", (), (j,), "int32")
    n = pr.recurrent((), ((i, I + 1), (j, J + 1)), "int32")
    n[pr.otherwise] = 0
    n[i, j] = pr.where(a == b, n[i + 1, j + 1] + 1, pr.maximum(n[i + 1, j], n[i, j + 1]))
    return Built({"length": n[0, 0], "row": n[0, j]})


def common_subsequence(inputs: Arrays, bounds: Bounds) -> Arrays:
    a, b = inputs["a"], inputs["b"]
    n = np.zeros((len(a) + 1, len(b) + 1), "int32")
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            n[i, j] = n[i + 1, j + 1] + 1 if a[i] == b[j] else max(n[i + 1, j], n[i, j + 1])
    return {"length": n[0, 0], "row": n[0]}


def build_local_alignment() -> Built:
    """Smith and Waterman with linear gaps; the score is the greatest anywhere."""
    i, _ = pr.dim("i")
    j, _ = pr.dim("j")
    a = pr.input("a", (), (i,), "int32")
    b = pr.input("b", (), (j,), "int32")
    h = pr.recurrent((), (i, j), "int32")
    diagonal = pr.where((i > 0) & (j > 0), h[i - 1, j - 1], 0)
    up = pr.where(i > 0, h[i - 1, j], 0)
    left = pr.where(j > 0, h[i, j - 1], 0)
    h[i, j] = pr.maximum(pr.maximum(diagonal + pr.where(a == b, 3, -3), 0), pr.maximum(up, left) - 2)
    return Built({"scores": h, "best": pr.maximum(h[:, :].max(), 0)})


def local_alignment(inputs: Arrays, bounds: Bounds) -> Arrays:
    a, b = inputs["a"], inputs["b"]
    h = np.zeros((len(a) + 1, len(b) + 1), "int32")
    for i in range(len(a)):
        for j in range(len(b)):
            match = h[i, j] + (3 if a[i] == b[j] else -3)
            h[i + 1, j + 1] = max(0, match, h[i, j + 1] - 2, h[i + 1, j] - 2)
    return {"scores": h[1:, 1:], "best": h.max()}


def build_matrix_chain() -> Built:
    i, I = pr.dim("i")
    j, _ = pr.dim("j")
    sizes = pr.input("sizes", (), ((i, I + 1),), "int32")
    cost = pr.recurrent((), (i, (j, I)), "int32")
    cost[j <= i] = 0
    cost[j > i] = (cost[i, i:j] + cost[i + 1 : j + 1, j] + sizes * sizes[i + 1 : j + 1] * sizes[j + 1]).min()
    return Built({"cost": cost})


def matrix_chain(inputs: Arrays, bounds: Bounds) -> Arrays:
    p, I = inputs["sizes"], bounds["I"]
    cost = np.zeros((I, I), "int32")
    for width in range(1, I):
        for i in range(I - width):
            j = i + width
            cost[i, j] = min(cost[i, k] + cost[k + 1, j] + p[i] * p[k + 1] * p[j + 1] for k in range(i, j))
    return {"cost": cost}


def build_palindrome() -> Built:
    """The longest palindromic subsequence: reads towards larger i and smaller j."""
    i, I = pr.dim("i")
    j, _ = pr.dim("j")
    a = pr.input("a", (), (i,), "int32")
    d = pr.recurrent((), (i, (j, I)), "int32")
    d[j < i] = 0
    d[j == i] = 1
    inner = d[i + 1, j - 1] + 2
    d[j > i] = pr.where(a == a[j], inner, pr.maximum(d[i + 1, j], d[i, j - 1]))
    return Built({"d": d})


def palindrome(inputs: Arrays, bounds: Bounds) -> Arrays:
    a, I = inputs["a"], bounds["I"]
    d = np.zeros((I, I), "int32")
    for i in reversed(range(I)):
        d[i, i] = 1
        for j in range(i + 1, I):
            d[i, j] = d[i + 1, j - 1] + 2 if a[i] == a[j] else max(d[i + 1, j], d[i, j - 1])
    return {"d": d}


def words(rng: np.random.Generator, bounds: Bounds) -> Arrays:
    return {"a": rng.integers(0, 3, bounds["I"], "int32"), "b": rng.integers(0, 3, bounds["J"], "int32")}


SIDES = tuple({"I": i, "J": j} for i, j in [(0, 0), (0, 2), (1, 0), (1, 1), (3, 2), (7, 8), (9, 8)])

CASES = [
    Case("edit_distance", build_edit_distance, words, SIDES, edit_distance),
    Case("common_subsequence", build_common_subsequence, words, SIDES, common_subsequence),
    Case("local_alignment", build_local_alignment, words, SIDES, local_alignment),
    Case(
        "matrix_chain",
        build_matrix_chain,
        lambda rng, bounds: {"sizes": rng.integers(1, 30, bounds["I"] + 1, "int32")},
        steps(*EDGES[:7], name="I"),
        matrix_chain,
    ),
    Case(
        "palindrome",
        build_palindrome,
        lambda rng, bounds: {"a": rng.integers(0, 3, bounds["I"], "int32")},
        steps(*EDGES[:7], name="I"),
        palindrome,
    ),
]
