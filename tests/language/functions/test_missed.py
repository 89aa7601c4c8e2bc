"""The functions that users of other libraries look for: values and gradients in float64 against torch, on all backends.

Each is taken at every step of a dim, so that batches by dims are tested too; then at no step, and with a NaN among the
numbers where torch says what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn import functional

import polyrhythm as pr
from polyrhythm import nn

STEPS = 3


class Case(NamedTuple):
    """A function and the same in torch, what its operands look like at a step, and how many of them have a NaN."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = ((4,),)
    nans: int = 2


def _spd(x: Any, eye: Any) -> Any:
    return x @ x.mT + eye


def _ours_spd(x: pr.Tensor) -> pr.Tensor:
    return _spd(x, pr.eye(3, dtype="float64") * 0.5)


def _theirs_spd(x: torch.Tensor) -> torch.Tensor:
    return _spd(x, torch.eye(3, dtype=torch.float64) * 0.5)


def elementwise(name: str, theirs: Callable[..., Any], scale: float = 1.0, shift: float = 0.0) -> Case:
    ours = getattr(pr, name)
    return Case(lambda x: ours(x * scale + shift), lambda x: theirs(x * scale + shift))


def matrix(ours: Callable[..., Any], theirs: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    """A function of a symmetric positive definite matrix, and of what else it takes."""
    given = lambda x, *rest: ours(_ours_spd(x), *rest)  # noqa: E731
    wanted = lambda x, *rest: theirs(_theirs_spd(x), *rest)  # noqa: E731
    return Case(given, wanted, ((3, 3), *shapes), nans=0)


ELEMENTWISE: dict[str, tuple[Callable[..., Any], float, float]] = {
    "tan": (torch.tan, 1, 0),
    "atan": (torch.atan, 2, 0),
    "asin": (torch.asin, 0.2, 0),
    "acos": (torch.acos, 0.2, 0),
    "sinh": (torch.sinh, 1, 0),
    "cosh": (torch.cosh, 1, 0),
    "log2": (torch.log2, 0.3, 2),
    "log10": (torch.log10, 0.3, 2),
    "exp2": (torch.exp2, 1, 0),
    "trunc": (torch.trunc, 3, 0),
    "lgamma": (torch.lgamma, 0.3, 2),
    "digamma": (torch.digamma, 0.3, 2),
    "elu": (functional.elu, 1, 0),
    "leaky_relu": (functional.leaky_relu, 1, 0),
    "mish": (functional.mish, 1, 0),
    "hard_sigmoid": (lambda x: functional.relu6(x + 3) / 6, 4, 0),  # torch has its sixth in float32
    "hard_swish": (lambda x: x * functional.relu6(x + 3) / 6, 4, 0),
    "hard_tanh": (functional.hardtanh, 2, 0),
    "relu6": (functional.relu6, 8, 0),
    "selu": (functional.selu, 1, 0),
    "softsign": (functional.softsign, 1, 0),
    "log_sigmoid": (functional.logsigmoid, 1, 0),
}

CASES: dict[str, Case] = {
    **{name: elementwise(name, *rest) for name, rest in ELEMENTWISE.items()},
    "atan2": Case(pr.atan2, torch.atan2, ((4,), (4,))),
    "cholesky": matrix(pr.linalg.cholesky, torch.linalg.cholesky),
    "solve": matrix(pr.linalg.solve, torch.linalg.solve, (3, 2)),
    "triangular_solve": matrix(
        lambda a, b: pr.linalg.triangular_solve(a, b, lower=True),
        lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False),
        (3, 2),
    ),
    "inv": matrix(pr.linalg.inv, torch.linalg.inv),
    "slogdet": matrix(lambda a: pr.linalg.slogdet(a)[1], lambda a: torch.linalg.slogdet(a)[1]),
    "det": matrix(pr.linalg.det, torch.linalg.det),
    "qr": matrix(lambda a: pr.abs(pr.linalg.qr(a)[1]), lambda a: torch.linalg.qr(a)[1].abs()),
    "eigh": matrix(pr.linalg.eigvalsh, torch.linalg.eigvalsh),
    "eigenvectors": matrix(lambda a: pr.abs(pr.linalg.eigh(a)[1]), lambda a: torch.linalg.eigh(a)[1].abs()),
    "svd": Case(pr.linalg.svdvals, torch.linalg.svdvals, ((3, 2),), nans=0),
    "singular_vectors": Case(
        lambda x: pr.abs(pr.linalg.svd(x)[2]),
        lambda x: torch.linalg.svd(x, full_matrices=False)[2].abs(),
        ((3, 2),),
        nans=0,
    ),
    "norm": Case(pr.norm, torch.linalg.norm),
    "matrix_norm": Case(pr.linalg.matrix_norm, torch.linalg.matrix_norm, ((3, 2),)),
    "nuclear_norm": matrix(lambda a: pr.linalg.matrix_norm(a, "nuc"), lambda a: torch.linalg.matrix_norm(a, "nuc")),
    "fft": Case(pr.fft.fft, torch.fft.fft),
    "ifft": Case(
        lambda x, y: pr.fft.ifft(pr.complex(x, y)), lambda x, y: torch.fft.ifft(torch.complex(x, y)), ((4,),) * 2
    ),
    "rfft": Case(pr.fft.rfft, torch.fft.rfft, ((5,),)),
    "irfft": Case(
        lambda x: pr.fft.irfft(pr.fft.rfft(x) * (1 + 2j), 5),
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * (1 + 2j), 5),
        ((5,),),
    ),
    "complex": Case(
        lambda x, y: pr.exp(pr.complex(x, y)) * pr.conj(pr.complex(y, x)),
        lambda x, y: torch.exp(torch.complex(x, y)) * torch.complex(y, x).conj(),
        ((4,), (4,)),
    ),
    "angle": Case(lambda x, y: pr.angle(pr.complex(x, y)), lambda x, y: torch.angle(torch.complex(x, y)), ((4,),) * 2),
    "set": Case(
        lambda x, u: x.at[pr.constant([2, 0])].set(u),
        lambda x, u: x.index_put((torch.tensor([2, 0]),), u),
        ((4,), (2,)),
    ),
    "add": Case(
        lambda x, u: x.at[pr.constant([2, 2])].add(u),
        lambda x, u: x.index_put((torch.tensor([2, 2]),), u, accumulate=True),
        ((4,), (2,)),
    ),
    "max": Case(
        lambda x, u: x.at[pr.constant([2, 2])].max(u),
        lambda x, u: x.scatter_reduce(0, torch.tensor([2, 2]), u, "amax"),
        ((4,), (2,)),
    ),
    "conv3d": Case(
        lambda x, w: pr.conv3d(x, w, padding=1, dilation=2),
        lambda x, w: functional.conv3d(x[None], w, padding=1, dilation=2)[0],
        ((2, 4, 4, 4), (3, 2, 2, 2, 2)),
    ),
    "conv_transpose1d": Case(
        lambda x, w: pr.conv_transpose1d(x, w, stride=2, dilation=2),
        lambda x, w: functional.conv_transpose1d(x[None], w, stride=2, dilation=2)[0],
        ((2, 4), (2, 3, 2)),
        nans=1,  # one among the weights meets the zeros between the elements of x
    ),
    "conv_transpose2d": Case(
        lambda x, w: pr.conv_transpose2d(x, w, stride=2, output_padding=1),
        lambda x, w: functional.conv_transpose2d(x[None], w, stride=2, output_padding=1)[0],
        ((2, 3, 3), (2, 1, 2, 2)),
        nans=1,
    ),
    "diag": Case(pr.diag, torch.diag),
    "trace": Case(pr.trace, torch.trace, ((3, 3),)),
    "linspace": Case(
        lambda x: pr.linspace(x.axes[0], x.axes[1], 5),
        lambda x: x[0] + (x[1] - x[0]) * torch.linspace(0, 1, 5, dtype=torch.float64),
    ),
    "median": Case(lambda x: pr.median(x, 0), lambda x: torch.quantile(x, 0.5, 0)),
    "quantile": Case(lambda x: pr.quantile(x, 0.3, 0), lambda x: torch.quantile(x, 0.3, 0)),
    "searchsorted": Case(
        lambda x, y: pr.searchsorted(pr.sort(x), y).cast("float64") * y,
        lambda x, y: torch.searchsorted(x.sort()[0].contiguous(), y.contiguous()).double() * y,
        ((4,), (5,)),
        nans=0,
    ),
    "topk": Case(lambda x: pr.topk(x, 2)[0], lambda x: torch.topk(x, 2)[0]),
    "cross_entropy": Case(
        lambda x, y: nn.cross_entropy(x, pr.softmax(y)),
        lambda x, y: functional.cross_entropy(x, y.softmax(-1)),
        ((4,), (4,)),
    ),
    "huber": Case(
        lambda x, y: nn.huber(x, y, 0.7),
        lambda x, y: functional.huber_loss(x, y, reduction="none", delta=0.7),
        ((4,),) * 2,
    ),
    "kl": Case(
        nn.kl_divergence,
        lambda x, y: functional.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True, reduction="none").sum(-1),
        ((4,), (4,)),
    ),
    "bce": Case(
        lambda x, y: nn.binary_cross_entropy(x, pr.sigmoid(y)),
        lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"),
        ((4,), (4,)),
    ),
    "mT": Case(lambda x: x.mT, lambda x: x.mT, ((2, 3),)),
    "astype": Case(lambda x: x.astype("float64") * x.ndim, lambda x: x * x.ndim),
}


def ours() -> dict[str, Any]:
    """Every function at every step, and the gradients of its squares."""
    t, T = pr.dim("t")
    outputs: dict[str, Any] = {}
    for name, case in CASES.items():
        given = [pr.input(f"{name}_{k}", shape, (t,), "float64") for k, shape in enumerate(case.shapes)]
        made = case.ours(*given)
        size = pr.abs(made)
        outputs[name] = made, pr.grad((size * size)[0:T].sum(), given)
    return outputs


def operands(steps: int, nan: bool) -> dict[str, Any]:
    random = np.random.default_rng(3)
    made: dict[str, Any] = {}
    for name, case in CASES.items():
        for k, shape in enumerate(case.shapes):
            values = random.normal(size=(steps, *shape))
            if nan and k < case.nans:
                values[1].reshape(-1)[1] = np.nan
            made[f"{name}_{k}"] = values
    return made


def theirs(name: str, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    case = CASES[name]
    given = [torch.tensor(inputs[f"{name}_{k}"], requires_grad=True) for k in range(len(case.shapes))]
    made = torch.stack([case.theirs(*step) for step in zip(*given, strict=True)])
    slopes = torch.autograd.grad((made.abs() ** 2).sum(), given, allow_unused=True)
    zeros = [np.zeros(g.shape) if s is None else s.numpy() for s, g in zip(slopes, given, strict=True)]
    return made.detach().resolve_conj().numpy(), zeros


def compare(found: dict[str, Any], inputs: dict[str, np.ndarray], gradients: bool) -> None:
    wrong = []
    for name in CASES:
        value, slopes = theirs(name, inputs)
        pairs = [(found[name][0], value), *(zip(found[name][1], slopes, strict=True) if gradients else ())]
        for have, want in pairs:
            have = np.asarray(have)
            if have.shape != want.shape or not np.allclose(have, want, 1e-8, 1e-8, equal_nan=True):
                wrong.append(f"{name}:\n{have}\ninstead of\n{want}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_like_torch(backend: Any) -> None:
    outputs = ours()
    program = pr.compile(outputs, backend=backend)
    inputs = operands(STEPS, nan=False)
    compare(program(**inputs), inputs, gradients=True)
    with_nan = operands(STEPS, nan=True)
    compare(program(**with_nan), with_nan, gradients=False)
    none = program(**operands(0, nan=False))
    for name, case in CASES.items():
        shapes = [np.asarray(slope).shape for slope in none[name][1]]
        assert shapes == [(0, *shape) for shape in case.shapes]
        assert np.asarray(none[name][0]).shape[0] == 0
