"""Losses against torch, values and gradients, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import polyrhythm as pr
from polyrhythm import nn
from polyrhythm.errors import DTypeError, ShapeError
from tests.language.functions.everywhere import check_everywhere
from tests.language.functions.helpers import f32, i32, random_array

LOGITS, OTHER = random_array((5, 4)), random_array((5, 4), seed=1)
LABELS, SOFT = i32([0, 3, 1, 1, 2]), np.abs(random_array((5, 4), seed=2))
SOFT = (SOFT / SOFT.sum(1, keepdims=True)).astype("float32")


def torch_cross_entropy(x: Any, labels: np.ndarray, **options: Any) -> Any:
    target = torch.as_tensor(labels)
    return functional.cross_entropy(
        x, target.long() if labels.dtype == np.int32 else target, reduction="none", **options
    )


CASES: dict[str, tuple[Any, Any]] = {
    "labels": (lambda x: nn.cross_entropy(x, LABELS), lambda x: torch_cross_entropy(x, LABELS)),
    "soft": (lambda x: nn.cross_entropy(x, SOFT), lambda x: torch_cross_entropy(x, SOFT)),
    "smoothed": (
        lambda x: nn.cross_entropy(x, LABELS, smoothing=0.1),
        lambda x: torch_cross_entropy(x, LABELS, label_smoothing=0.1),
    ),
    "ignored": (
        lambda x: nn.cross_entropy(x, LABELS, ignore=1),
        lambda x: torch_cross_entropy(x, LABELS, ignore_index=1),
    ),
    "binary": (
        lambda x: nn.binary_cross_entropy(x * 9, SOFT, weight=2.0),
        lambda x: functional.binary_cross_entropy_with_logits(
            x * 9, torch.as_tensor(SOFT), pos_weight=torch.tensor(2.0), reduction="none"
        ),
    ),
    "huber": (
        lambda x: nn.huber(x, OTHER, 0.7),
        lambda x: functional.huber_loss(x, torch.as_tensor(OTHER), delta=0.7, reduction="none"),
    ),
    "kl": (
        lambda x: nn.kl_divergence(x, OTHER),
        lambda x: functional.kl_div(
            x.log_softmax(-1), torch.as_tensor(OTHER).log_softmax(-1), log_target=True, reduction="none"
        ).sum(-1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_torch(name: str) -> None:
    ours, theirs = CASES[name]
    x = pr.input("x", LOGITS.shape)
    loss = ours(x)
    logits = torch.tensor(LOGITS, requires_grad=True)
    expected = theirs(logits)
    found, slope = pr.evaluate((loss, pr.grad(loss.sum(), x)), {"x": LOGITS})
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, torch.autograd.grad(expected.sum(), logits)[0].numpy(), rtol=1e-5, atol=1e-6)


def test_nan_among_the_scores_is_not_hidden() -> None:
    scores, nan = pr.constant([1.0, 2.0]), pr.constant([1.0, float("nan")])
    for loss in (nn.kl_divergence, nn.cross_entropy, nn.binary_cross_entropy, nn.huber):
        for pair in ((scores, nan), (nan, scores)):
            assert np.isnan(pr.evaluate(pr.sum(loss(*pair)))), loss


def test_everywhere() -> None:
    losses = {
        "labels": lambda x: nn.cross_entropy(x, pr.argmax(x, -1)),
        "soft": lambda x: nn.cross_entropy(x, pr.softmax(x * x)),
        "binary": lambda x: nn.binary_cross_entropy(x, x > 0),
        "huber": lambda x: nn.huber(x, x * x),
        "kl": lambda x: nn.kl_divergence(x, x * x),
    }
    check_everywhere(losses, LOGITS, gradients=True, lengths=(0, 1))


def ctc_loss(scores: pr.Tensor, t: pr.Dim, **lengths: Any) -> pr.Tensor:
    return nn.ctc(t, pr.log_softmax(scores), pr.input("labels", (2, 3), (), "int32"), **lengths)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_ctc_as_in_torch(backend: Any) -> None:
    """Repeated labels, and rows and labels of different length."""
    t, _ = pr.dim("t", min=1)
    scores = pr.input("scores", (2, 4), (t,))
    steps, used = pr.input("steps", (2,), (), "int32"), pr.input("used", (2,), (), "int32")
    loss = ctc_loss(scores, t, length=steps, label_length=used)
    program = pr.compile((loss, pr.grad(loss.sum(), scores)), backend=backend)
    given = random_array((7, 2, 4))
    labels = i32([[1, 1, 3], [2, 3, 1]])
    for lengths, counts in (([7, 7], [3, 3]), ([7, 5], [3, 1]), ([4, 6], [3, 2])):
        x = torch.tensor(given, requires_grad=True)
        expected = functional.ctc_loss(
            x.log_softmax(-1),
            torch.as_tensor(labels).long(),
            torch.tensor(lengths),
            torch.tensor(counts),
            reduction="none",
        )
        slope = torch.autograd.grad(expected.sum(), x)[0]
        found = program(scores=given, labels=labels, steps=i32(lengths), used=i32(counts))
        np.testing.assert_allclose(found[0], expected.detach().numpy(), rtol=1e-4)
        np.testing.assert_allclose(found[1], slope.numpy(), rtol=1e-3, atol=1e-5)


def test_ctc_of_one_sequence_of_dynamic_labels() -> None:
    t, _ = pr.dim("t", min=1)
    s, S = pr.dim("s", min=1)
    scores, labels = pr.input("scores", (4,), (t,)), pr.input("labels", (), (s,), "int32")
    program = pr.compile(nn.ctc(t, pr.log_softmax(scores), labels[0:S]), backend="numpy")
    for steps, chars in ((5, [1, 2]), (6, [3, 3, 3]), (2, [1])):
        given = random_array((steps, 4))
        expected = functional.ctc_loss(
            torch.as_tensor(given).log_softmax(-1),
            torch.tensor(chars),
            torch.tensor(steps),
            torch.tensor(len(chars)),
            reduction="none",
        )
        np.testing.assert_allclose(program(scores=given, labels=i32(chars)), expected.numpy(), rtol=1e-4)


def test_what_cannot_be_aligned_has_an_infinite_loss() -> None:
    t, _ = pr.dim("t", min=1)
    loss = nn.ctc(t, pr.log_softmax(pr.input("scores", (3,), (t,))), pr.constant([1, 1]))
    assert np.isinf(pr.evaluate(loss, {"scores": f32(np.zeros((2, 3)))}))


def test_refusals() -> None:
    t, _ = pr.dim("t", min=1)
    with pytest.raises(ShapeError, match="vary along t"):
        nn.ctc(t, pr.zeros((3,)), pr.constant([1]))
    with pytest.raises(DTypeError, match="integers"):
        nn.ctc(t, pr.input("x", (3,), (t,)), pr.constant([1.0]))
