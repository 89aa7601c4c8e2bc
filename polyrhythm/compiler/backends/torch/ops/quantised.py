"""`dequantize` on torch tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from polyrhythm.compiler.backends.torch.ops.carriers import TORCH_DTYPES
from polyrhythm.compiler.ir.ops.quantised import PAIRED

Tensor = torch.Tensor


def _dequantize(codes: Tensor, scales: Tensor, *offsets: Tensor, dtype: np.dtype) -> Tensor:
    whole = codes
    if codes.dtype == torch.uint8:
        groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] * 2 // PAIRED, PAIRED // 2)
        whole = torch.cat([groups & 15, groups >> 4], -1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])
    blocks = whole.reshape(*scales.shape, whole.shape[-1] // scales.shape[-1]).to(torch.float32)
    made = blocks * scales.to(torch.float32)[..., None]
    for offset in offsets:
        made = made + offset.to(torch.float32)[..., None]
    return made.reshape(whole.shape).to(TORCH_DTYPES[np.dtype(dtype)])


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {"dequantize": _dequantize}
