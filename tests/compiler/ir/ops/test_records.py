"""An operation is one record: nothing else has to know it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm.compiler.ir.conditions import Condition
from polyrhythm.compiler.ir.ops import EXTERNAL, TABLE, Op, record
from polyrhythm.compiler.ir.ops.checks import broadcast_signature
from polyrhythm.compiler.ir.ops.record import Attributes, Gradients, Signature
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.ir.values import Step
from polyrhythm.language.tensor import apply
from tests.structure import modules

Types = tuple[TensorType, ...]


def _type(operands: Types, attributes: Attributes, given: Condition) -> TensorType:
    return operands[0]


def _numpy(x: np.ndarray) -> np.ndarray:
    return np.asarray(x * x * x)


def _signature(operands: Types, attributes: Attributes) -> Signature:
    return broadcast_signature(operands)


def _vjp(s: Step) -> Gradients:
    return [s.g * 3 * s.x[0] * s.x[0]]


@pytest.fixture
def cube() -> Iterator[str]:
    TABLE["cube"] = Op("cube", _type, _numpy, _signature, _vjp, elementwise=True)
    yield "cube"
    del TABLE["cube"]


def test_one_record_is_an_operation_with_its_gradient(cube: str) -> None:
    t, T = pr.dim("t")
    x, w = pr.input("x", (2,), (t,)), pr.input("w", (2,))
    h = pr.recurrent((2,), (t,))
    h[0] = x[0] * w
    h[t + 1] = apply(cube, h * 0.5) + x[t + 1] * w
    loss = apply(cube, h[T - 1]).sum()
    arrays = {"x": np.linspace(-1, 1, 6, dtype="f").reshape(3, 2), "w": np.array([0.5, 2.0], "f")}
    found = pr.compile({"loss": loss, "slope": pr.grad(loss, w)}, backend="numpy")(**arrays)  # type: ignore[arg-type]

    def by_hand(weights: np.ndarray) -> float:
        state = arrays["x"][0].astype(float) * weights
        for row in arrays["x"][1:].astype(float):
            state = (state * 0.5) ** 3 + row * weights
        return float((state**3).sum())

    steps = np.eye(2) * 1e-5
    weights = arrays["w"].astype(float)
    slope = [(by_hand(weights + step) - by_hand(weights - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(found["loss"], by_hand(weights), rtol=1e-5)
    np.testing.assert_allclose(found["slope"], slope, rtol=1e-4)
    np.testing.assert_allclose(pr.evaluate(pr.grad(loss, w), arrays), slope, rtol=1e-4)


def test_an_operation_from_outside_has_a_record_too() -> None:
    assert {name for name in EXTERNAL if record(name).external} == {"input", "host", "grad", "ruled", "cotangent"}
    assert not any(op.external for op in TABLE.values())


def test_no_module_lists_operations_that_have_a_property_in_common() -> None:
    names = TABLE.keys() | EXTERNAL.keys()
    for module, path in modules().items():
        if not module.startswith("polyrhythm.compiler") or ".ir.ops" in module:
            continue
        for statement in ast.parse(path.read_text()).body:
            value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
            for inner in ast.walk(value) if value is not None else ():
                listed = inner.elts if isinstance(inner, ast.Set) else []
                words = [element.value for element in listed if isinstance(element, ast.Constant)]
                assert len(words) < 3 or not names.issuperset(words) or "STRUCTURAL" in ast.unparse(statement), (
                    f"{module} lists {words}: what they have in common belongs into their records"
                )
