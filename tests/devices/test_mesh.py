"""Programs on meshes of 1, 2 and 8 forced host devices; `mesh_cases.py` says what holds on each."""

from typing import Any

import pytest

from tests.devices import mesh_cases
from tests.devices.running import run_cases

CASES = [name for name in vars(mesh_cases) if name.startswith("case_")]


@pytest.fixture(scope="module")
def eight() -> dict[str, Any]:
    """Every case on eight devices."""
    return run_cases("tests.devices.mesh_cases", 8)


@pytest.mark.parametrize("case", CASES)
def test_eight_devices(case: str, eight: dict[str, Any]) -> None:
    _check(case, eight)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_fewer_devices(devices: int, eight: dict[str, Any]) -> None:
    found = run_cases("tests.devices.mesh_cases", devices)
    for case in CASES:
        _check(case, found)
    assert found["case_seeds"] == eight["case_seeds"], "random numbers depend on the number of devices"


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
def test_random_programs(devices: int) -> None:
    _check("case_random_programs", run_cases("tests.devices.random_cases", devices))


def test_gradients_are_summed_once_per_step(eight: dict[str, Any]) -> None:
    """All gradients of a step travel in one collective; the text has the first iteration and the others."""
    assert eight["case_optimiser_of_the_library"] == {"all-reduce": 2}


def _check(case: str, found: dict[str, Any]) -> None:
    result = found[case]
    assert not (isinstance(result, dict) and "failed" in result), result["failed"]
