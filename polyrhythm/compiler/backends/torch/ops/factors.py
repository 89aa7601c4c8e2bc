"""Matrix factorisations and linear systems, with NaN for what has no answer, as the op table has it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from polyrhythm.compiler.backends.torch.ops.carriers import NUMPY_DTYPES, carried, from_numpy, restored
from polyrhythm.compiler.ir.ops.factors import orientation

Tensor = torch.Tensor


def _wide(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def compute(*tensors: Tensor, **attributes: bool) -> Tensor:
        return restored(function(*map(carried, tensors), **attributes), tensors[0].dtype)

    return compute


def _unless(failed: Tensor, value: Tensor) -> Tensor:
    """NaN in the matrices that failed."""
    return torch.where(failed[..., None, None], torch.nan, value)


def _cholesky(x: Tensor) -> Tensor:
    factor, info = torch.linalg.cholesky_ex(x)
    return _unless(info != 0, factor)


def _triangular_solve(a: Tensor, b: Tensor, lower: bool, transposed: bool) -> Tensor:
    triangle = torch.tril(a) if lower else torch.triu(a)
    turned = triangle.mT if transposed else triangle
    found: Tensor = torch.linalg.solve_triangular(turned, b, upper=lower == transposed)
    return found


def _solve(a: Tensor, b: Tensor) -> Tensor:
    result, info = torch.linalg.solve_ex(a, b)
    return _unless(info != 0, result)


def _finite(x: Tensor) -> tuple[Tensor, Tensor]:
    """Which matrices are not finite, and all with zeros in place of those: torch raises for them."""
    failed = ~torch.isfinite(x).all(-1).all(-1)
    return failed, torch.where(failed[..., None, None], 0, x)


def _signs(vectors: Tensor) -> Tensor:
    weights = from_numpy(orientation(vectors.shape[-2], NUMPY_DTYPES[vectors.dtype])).to(vectors.device)
    return torch.where(torch.einsum("i,...ij->...j", weights, vectors) < 0, -1, 1).to(vectors.dtype)[..., None, :]


def _eigh(x: Tensor) -> Tensor:
    failed, matrix = _finite(x)
    values, vectors = torch.linalg.eigh(matrix)
    return _unless(failed, torch.cat([values[..., None, :], vectors * _signs(vectors)], -2))


def _svd(x: Tensor) -> Tensor:
    failed, matrix = _finite(x)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    signs = _signs(v.mT)
    return _unless(failed, torch.cat([s[..., None, :], v.mT * signs, u * signs], -2))


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {
    "cholesky": _wide(_cholesky),
    "triangular_solve": _wide(_triangular_solve),
    "solve": _wide(_solve),
    "slogdet": _wide(lambda x: torch.stack(tuple(torch.linalg.slogdet(x)), -1)),
    "qr": _wide(lambda x: torch.linalg.qr(x)[0]),
    "eigh": _wide(_eigh),
    "svd": _wide(_svd),
}
