"""The functions that users of other libraries look for, along axes whose length the call decides, against torch.

Each is taken of all steps of a dim, of the steps so far, and of rows that have lengths of their own: values and
gradients on every backend, in both precisions. What a row holds beyond its end is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import polyrhythm as pr
from polyrhythm.errors import UnsupportedError
from tests.language.functions.test_missed import CASES, Case

LEAST, STEPS = 3, 4
SIZES = np.array([4, 3, 6], "int32")
FORMS = {
    "a range": [STEPS],
    "ranges": [LEAST + step for step in range(STEPS)],
    "rows": SIZES.tolist(),
}
"""How long the axis is at each step."""

TOLERANCE = {"float64": 1e-8, "float32": 2e-3}
REFUSED = ["conv_transpose1d"]
"""What runs compiled along ranges, but along rows that have lengths of their own only by `pr.evaluate`."""


def _gram(x: Any, eye: Any) -> Any:
    return x @ x.mT + eye


def _ours(x: pr.Tensor) -> pr.Tensor:
    return _gram(x, pr.eye(x.shape[0], dtype=x.dtype))


def _theirs(x: torch.Tensor) -> torch.Tensor:
    return _gram(x, torch.eye(len(x), dtype=torch.float64))


def _interpolated(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0.1, 1 + 4 * (x + 1).clip(0) / 1.1, 5 - 3 * (x - 0.1) / 2.9)


L = -1
"""The length that differs."""

ALONG = {
    name: case._replace(shapes=((L,),) * len(case.shapes))
    for name, case in CASES.items()
    if case.shapes[0] in [(4,), (5,)]
}
ALONG |= {name: CASES[name]._replace(shapes=((L,), (2,))) for name in ("set", "add", "max")}
ALONG |= {name: CASES[name]._replace(shapes=((L, 2),)) for name in ("svd", "matrix_norm", "mT")}
del ALONG["irfft"], ALONG["linspace"]
ALONG |= {
    "linspace": Case(
        lambda x: pr.linspace(x.axes[0], x.axes[1], x.shape[0]) * x,
        lambda x: (x[0] + (x[1] - x[0]) * torch.linspace(0, 1, len(x), dtype=torch.float64)) * x,
        ((L,),),
    ),
    "irfft": Case(
        lambda x: pr.fft.irfft(pr.fft.rfft(x) * (1 + 2j), x.shape[0]),
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * (1 + 2j), len(x)),
        ((L,),),
    ),
    "interp": Case(
        lambda x: pr.interp(x, pr.constant([-1.0, 0.1, 3.0]), pr.constant([1.0, 5.0, 2.0])), _interpolated, ((L,),)
    ),
    "sort": Case(lambda x: pr.sort(x) ** 3, lambda x: x.sort()[0] ** 3, ((L,),)),
    "cumsum": Case(lambda x: pr.cumsum(x) ** 2, lambda x: x.cumsum(0) ** 2, ((L,),)),
    "trace": Case(lambda x: pr.trace(x @ x.mT), lambda x: torch.trace(x @ x.mT), ((L, 2),)),
    "diagonal": Case(lambda x: pr.diagonal(x @ x.mT, 1), lambda x: torch.diagonal(x @ x.mT, 1), ((L, 2),)),
    "conv1d": Case(
        lambda x, w: pr.conv1d(x.mT, w, padding=1, dilation=2),
        lambda x, w: functional.conv1d(x.mT[None], w, padding=1, dilation=2)[0],
        ((L, 2), (3, 2, 2)),
    ),
    "conv3d": Case(
        lambda x, w: pr.conv3d(pr.unsqueeze(x, 0), w, padding=1, dilation=2),
        lambda x, w: functional.conv3d(x[None, None], w, padding=1, dilation=2)[0],
        ((L, 3, 3), (2, 1, 2, 2, 2)),
    ),
    "conv_transpose1d": Case(
        lambda x, w: pr.conv_transpose1d(x.mT, w, stride=2, dilation=2),
        lambda x, w: functional.conv_transpose1d(x.mT[None], w, stride=2, dilation=2)[0],
        ((L, 2), (2, 3, 2)),
    ),
    "conv_transpose2d": Case(
        lambda x, w: pr.conv_transpose2d(pr.unsqueeze(x, 0), w, stride=2),
        lambda x, w: functional.conv_transpose2d(x[None, None], w, stride=2)[0],
        ((L, 3), (1, 2, 2, 2)),
    ),
    "cholesky": Case(lambda x: pr.linalg.cholesky(_ours(x)), lambda x: torch.linalg.cholesky(_theirs(x)), ((L, 2),)),
    "inv": Case(lambda x: pr.linalg.inv(_ours(x)), lambda x: torch.linalg.inv(_theirs(x)), ((L, 2),)),
    "det": Case(lambda x: pr.linalg.det(_ours(x)), lambda x: torch.linalg.det(_theirs(x)), ((L, 2),)),
    "slogdet": Case(lambda x: pr.linalg.slogdet(_ours(x))[1], lambda x: torch.linalg.slogdet(_theirs(x))[1], ((L, 2),)),
    "solve": Case(
        lambda x, y: pr.linalg.solve(_ours(x), y), lambda x, y: torch.linalg.solve(_theirs(x), y), ((L, 2), (L,))
    ),
    "triangular_solve": Case(
        lambda x, y: pr.linalg.triangular_solve(_ours(x), y, lower=True),
        lambda x, y: torch.linalg.solve_triangular(_theirs(x).tril(), y[:, None], upper=False)[:, 0],
        ((L, 2), (L,)),
    ),
    "eigh": Case(
        lambda x: pr.linalg.eigvalsh(_ours(x)).axes[-2:],
        lambda x: torch.linalg.eigvalsh(_theirs(x))[-2:],
        ((L, 2),),
    ),
    "qr": Case(lambda x: pr.abs(pr.linalg.qr(x)[1]), lambda x: torch.linalg.qr(x)[1].abs(), ((L, 2),)),
    "lstsq": Case(
        lambda x, y: pr.linalg.solve(x.mT @ x, x.mT @ y),
        lambda x, y: torch.linalg.solve(x.mT @ x, x.mT @ y),
        ((L, 2), (L,)),
    ),
}


def operands(name: str, form: str) -> list[np.ndarray]:
    """Numbers for each operand: of all steps in a row, or of all rows side by side."""
    random = np.random.default_rng(len(name) + len(form))
    longest = max(FORMS[form])
    made = []
    for shape in ALONG[name].shapes:
        if shape[0] != L:
            made.append(random.normal(size=shape))
        elif form == "rows":
            made.append(random.normal(size=(len(SIZES), longest, *shape[1:])))
        else:
            made.append(random.normal(size=(longest, *shape[1:])))
    return made


def ours(names: list[str], form: str, dtype: str) -> dict[str, Any]:
    """The sums of squares of every function at each step, and the gradients of their sum."""
    dims: Any
    part: Any
    every: Any
    if form == "rows":
        b, B = pr.dim("b")
        s, S = pr.dim("s", extent=pr.input("sizes", (), (b,), "int32"), min=LEAST)
        dims = (b, s)
        part, every = (b, slice(0, S)), {b: slice(0, B)}
    else:
        t, T = pr.dim("t", min=LEAST)
        dims = (t,) if form == "a range" else ((t, T + LEAST - 1),)
        part, every = (slice(0, T if form == "a range" else t + LEAST),), {t: slice(0, T)}
    outputs: dict[str, Any] = {}
    for name in names:
        case = ALONG[name]
        given = [
            pr.input(f"{name}_{k}", shape[1:], dims, dtype)
            if shape[0] == L
            else pr.input(f"{name}_{k}", shape, (), dtype)
            for k, shape in enumerate(case.shapes)
        ]
        made = pr.abs(
            case.ours(*[x[part] if shape[0] == L else x for x, shape in zip(given, case.shapes, strict=True)])
        )
        each = (made * made).sum()
        outputs[name] = each, pr.grad(each[every].sum() if each.dims else each, given)
    return outputs


def theirs(name: str, form: str) -> tuple[np.ndarray, list[np.ndarray]]:
    given = [torch.tensor(x, requires_grad=True) for x in operands(name, form)]
    each = []
    for row, size in enumerate(FORMS[form]):
        own = [
            x if shape[0] != L else x[row, :size] if form == "rows" else x[:size]
            for x, shape in zip(given, ALONG[name].shapes, strict=True)
        ]
        each.append((ALONG[name].theirs(*own).abs() ** 2).sum())
    slopes = torch.autograd.grad(torch.stack(each).sum(), given, allow_unused=True)
    zeros = [np.zeros(g.shape) if s is None else s.numpy() for s, g in zip(slopes, given, strict=True)]
    return torch.stack(each).detach().numpy(), zeros


def inputs(names: list[str], form: str, dtype: str) -> dict[str, Any]:
    made: dict[str, Any] = {"sizes": SIZES} if form == "rows" else {}
    for name in names:
        for k, (x, shape) in enumerate(zip(operands(name, form), ALONG[name].shapes, strict=True)):
            if form == "rows" and shape[0] == L:
                for row, size in enumerate(SIZES):
                    x[row, size:] = np.nan
            made[f"{name}_{k}"] = x.astype(dtype)
    return made


def whole(result: Any) -> np.ndarray:
    return np.asarray(getattr(result, "values", result))


PAIRS = [(backend, form) for backend in ("numpy", "torch", "jax") for form in FORMS]
PAIRS.remove(("torch", "ranges"))  # step by step as on NumPy, and takes minutes


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("backend", "form"), PAIRS)
def test_along_lengths_of_the_call(backend: Any, form: str, dtype: str) -> None:
    names = [name for name in ALONG if not (form == "rows" and name in REFUSED)]
    found = pr.compile(ours(names, form, dtype), backend=backend)(**inputs(names, form, dtype))
    tolerance, wrong = TOLERANCE[dtype], []
    for name in names:
        each, slopes = theirs(name, form)
        pairs = [(whole(found[name][0]).reshape(-1), each)]
        pairs += [(whole(a), b) for a, b in zip(found[name][1], slopes, strict=True)]
        for have, want in pairs:
            size = max(1.0, float(np.abs(want).max(initial=0)))
            if have.shape != want.shape or not np.allclose(have, want, tolerance, tolerance * size):
                wrong.append(f"{name}:\n{have}\ninstead of\n{want}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_for_all_rows_at_one_length_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="has a length that differs from row to row"):
        pr.compile(ours([name], "rows", "float64"), backend="numpy")
