from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polyrhythm as pr
from polyrhythm.errors import ShapeError
from tests.language.functions.everywhere import check_everywhere
from tests.language.functions.helpers import BFLOAT16, assert_close, f32, i8, on_constants, random_array

PADDINGS = ["same", "valid", 0, 1, (2, 1), [(0, 1), (2, 0)]]


def convolved(x: np.ndarray, w: np.ndarray, stride: Any, padding: Any, dilation: Any, groups: int) -> np.ndarray:
    """The same by JAX."""
    axes = x.ndim - 2
    each = [n if isinstance(n, tuple) else (n,) * axes for n in (stride, dilation)]
    if not isinstance(padding, str):
        entries = padding if isinstance(padding, (tuple, list)) else (padding,) * axes
        padding = [n if isinstance(n, tuple) else (n, n) for n in entries]
    pads = padding.upper() if isinstance(padding, str) else padding
    convolve: Any = jax.lax.conv_general_dilated
    return np.asarray(convolve(x, w, each[0], pads, None, each[1], feature_group_count=groups))


@settings(max_examples=20)
@given(
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from([1, 2, (3,)]),
    st.sampled_from(["same", "valid", 1, (2,), [(0, 2)]]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
)
def test_conv1d_as_in_jax(length: int, window: int, stride: Any, padding: Any, dilation: int, groups: int) -> None:
    x = random_array((2, 4, length), "int32", 1).astype("float32")
    w = random_array((2, 4 // groups, window), "int32", 2).astype("float32")
    expected = convolved(x, w, stride, padding, dilation, groups)

    def function(x: pr.Tensor, w: pr.Tensor) -> pr.Tensor:
        return pr.conv1d(x, w, None, stride, padding, dilation, groups)

    assert_close(on_constants(function, x, w), expected)
    t, T = pr.dim("t")
    steps = pr.input("x", (2, 4), (t,))[0:T].transpose(1, 2, 0)
    dynamic = pr.evaluate(function(steps, pr.constant(w)), {"x": x.transpose(2, 0, 1)})
    assert_close(dynamic, expected)


@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("stride", [1, (2, 1)], ids=str)
@pytest.mark.parametrize("dilation", [1, (1, 2)], ids=str)
def test_conv2d_as_in_jax(padding: Any, stride: Any, dilation: Any) -> None:
    x, w = random_array((2, 2, 6, 5), seed=1), random_array((4, 1, 3, 2), seed=2)
    result = on_constants(lambda x, w: pr.conv2d(x, w, None, stride, padding, dilation, 2), x, w)
    assert_close(result, convolved(x, w, stride, padding, dilation, 2), 4)


def test_convolution_without_a_batch_and_with_a_bias() -> None:
    x, w, b = random_array((2, 6), seed=1), random_array((3, 2, 2), seed=2), random_array((3,), seed=3)
    expected = convolved(x[None], w, 1, "same", 1, 1)[0] + b[:, None]
    assert_close(on_constants(lambda x, w, b: pr.conv1d(x, w, b, padding="same"), x, w, b), expected, 4)
    image = random_array((2, 4, 4), seed=4)
    kernel = random_array((3, 2, 2, 2), seed=5)
    expected = convolved(image[None], kernel, 1, 0, 1, 1)[0] + b[:, None, None]
    assert_close(on_constants(pr.conv2d, image, kernel, b), expected, 4)


def test_same_convolution_keeps_a_dynamic_length() -> None:
    t, T = pr.dim("t")
    x = pr.input("x", (2,), (t,))[0:T].T
    assert pr.conv1d(x, pr.ones((3, 2, 5)), padding="same").shape == (3, T)


def windows(x: np.ndarray, window: Any, stride: Any, padding: Any) -> list[np.ndarray]:
    """Maximum, sum and number of real elements of each window, by JAX."""
    axes = len(window)
    lead = (1,) * (x.ndim - axes)
    pads = padding.upper() if isinstance(padding, str) else [(0, 0)] * len(lead) + [(n, n) for n in padding]
    sizes, steps = (*lead, *window), (*lead, *stride)
    reduce = jax.lax.reduce_window
    return [
        np.asarray(reduce(x, -np.inf, jax.lax.max, sizes, steps, pads)),
        np.asarray(reduce(x, 0.0, jax.lax.add, sizes, steps, pads)),
        np.asarray(reduce(np.ones_like(x), 0.0, jax.lax.add, sizes, steps, pads)),
    ]


@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [
        ((2,), None, 0),
        ((3,), 1, "same"),
        ((2, 2), None, 0),
        ((3, 2), (2, 1), 1),
        ((3, 3), 2, "same"),
        ((2, 3), 1, (1, 0)),
    ],
    ids=str,
)
def test_pooling_as_in_jax(window: Any, stride: Any, padding: Any) -> None:
    x = random_array((2, 3, 6, 7))
    steps = window if stride is None else stride if isinstance(stride, tuple) else (stride,) * len(window)
    pads = padding if isinstance(padding, (str, tuple)) else (padding,) * len(window)
    most, total, count = windows(x, window, steps, pads)
    size = np.float32(np.prod(window))
    assert_close(on_constants(lambda x: pr.max_pool(x, window, stride, padding), x), most)
    assert_close(on_constants(lambda x: pr.avg_pool(x, window, stride, padding), x), total / size, 4)
    assert_close(on_constants(lambda x: pr.avg_pool(x, window, stride, padding, False), x), total / count, 4)


def test_pooling_of_a_dynamic_axis() -> None:
    t, T = pr.dim("t")
    array = random_array((7,))
    x = pr.input("x", (), (t,))[0:T]
    assert pr.max_pool(x, 2).shape == (T // 2,)
    assert_close(pr.evaluate(pr.max_pool(x, 2), {"x": array}), array[:6].reshape(3, 2).max(1))
    assert pr.evaluate(pr.avg_pool(x, 2), {"x": array[:1]}).shape == (0,)


def test_pooling_of_integers_and_narrow_floats() -> None:
    assert_close(on_constants(lambda x: pr.max_pool(x, 2), i8([1, 5, -3, -4])), i8([5, -3]))
    assert_close(on_constants(lambda x: pr.avg_pool(x, 2), i8([1, 4, -3, -4])), f32([2.5, -3.5]))
    ones = np.ones(512, BFLOAT16)
    assert_close(on_constants(lambda x: pr.avg_pool(x, 512), ones), np.ones(1, BFLOAT16))


def test_refusals() -> None:
    x, w = pr.zeros((1, 2, 5)), pr.zeros((3, 2, 2))
    for wrong, text in [
        (lambda: pr.conv1d(pr.zeros((5,)), w), r"\(batch, channels, length\)"),
        (lambda: pr.conv2d(x, w), r"\(batch, channels, height, width\)"),
        (lambda: pr.conv1d(x, pr.zeros((3, 1, 2))), "channels"),
        (lambda: pr.conv1d(x, w, stride=0), "from 1 up"),
        (lambda: pr.conv1d(x, w, stride=(1, 1)), "one per axis"),
        (lambda: pr.conv1d(x, w, padding="full"), '"same" or "valid"'),  # type: ignore[arg-type]
        (lambda: pr.conv1d(x, w, padding=[(1, 2, 3)]), "pair per axis"),
        (lambda: pr.conv1d(x, w, padding=-1), "negative"),
        (lambda: pr.max_pool(pr.zeros(3), (1, 1)), "one entry per axis"),
        (lambda: pr.max_pool(pr.zeros(3), 0), "1 or more|from 1 up"),
    ]:
        with pytest.raises(ShapeError, match=text):
            wrong()


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"stride": 3, "padding": 1, "output_padding": 2},
        {"groups": 2, "dilation": 2, "padding": 1},
        {"stride": 2, "padding": 4},
    ],
    ids=str,
)
def test_transposed_convolutions_as_in_torch(axes: int, options: dict[str, Any]) -> None:
    x = random_array((2, 4, *(5, 4, 6)[:axes]))
    w, bias = random_array((4, 3, *(3, 2, 3)[:axes]), seed=1), random_array((3 * options.get("groups", 1),), seed=2)
    theirs = getattr(torch.nn.functional, f"conv_transpose{axes}d")
    expected = theirs(*map(torch.as_tensor, (x, w, bias)), **options).numpy()
    ours = getattr(pr, f"conv_transpose{axes}d")
    assert_close(on_constants(lambda *given: ours(*given, **options), x, w, bias), expected, 8)
    assert_close(on_constants(lambda *given: ours(*given, **options), x[0], w, bias), expected[0], 8)


def test_convolution_over_three_axes_as_in_torch() -> None:
    x, w = random_array((2, 4, 5, 4, 6)), random_array((6, 2, 2, 3, 2), seed=1)
    options: dict[str, Any] = {"stride": (1, 2, 1), "padding": 1, "dilation": (2, 1, 1), "groups": 2}
    expected = torch.conv3d(torch.as_tensor(x), torch.as_tensor(w), **options).numpy()
    assert_close(on_constants(lambda x, w: pr.conv3d(x, w, **options), x, w), expected, 8)


@pytest.mark.slow
def test_convolutions_everywhere() -> None:
    x = random_array((4, 1, 2, 3))
    w = pr.constant(random_array((1, 2, 2, 2), seed=1))
    whole = pr.constant(random_array((2, 1, 2, 2, 2), seed=2))
    table = {
        "transposed": lambda x: pr.conv_transpose2d(x, w, stride=2, padding=1),
        "length": lambda x: pr.conv_transpose1d(x.axes[:, 0, 0].T, pr.ones((3, 2, 3)), stride=2, padding=1),
        "depth": lambda x: pr.conv3d(x.transpose((1, 0, 2, 3)), whole, padding=1),
    }
    check_everywhere(table, x, gradients=True, lengths=(1, 6))


def test_transposed_convolutions_refuse() -> None:
    with pytest.raises(ShapeError, match="channels, outputs / groups"):
        pr.conv_transpose2d(pr.ones((1, 3, 4)), pr.ones((3, 2, 2)))
    with pytest.raises(ShapeError, match="groups"):
        pr.conv_transpose1d(pr.ones((1, 3, 4)), pr.ones((3, 2, 2)), groups=2)
