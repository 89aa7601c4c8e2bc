"""Programs on meshes of 1, 2 and 8 forced host devices; `mesh_cases.py` says what holds on each."""

from typing import Any

import pytest

from tests.devices import quick_cases
from tests.devices.running import run_cases


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    """A case of each kind, on eight devices."""
    return run_cases("tests.devices.quick_cases", 8)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.__name__ for case in quick_cases.CASES])
def test_eight_devices(case: str, quick: dict[str, Any]) -> None:
    _check({case: quick[case]})


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_every_case(devices: int, quick: dict[str, Any]) -> None:
    found = run_cases("tests.devices.mesh_cases", devices)
    _check(found)
    assert found["case_seeds"] == quick["case_seeds"], "random numbers depend on the number of devices"


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_rings(devices: int) -> None:
    _check(run_cases("tests.devices.ring_cases", devices))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_random_programs(devices: int) -> None:
    _check(run_cases("tests.devices.random_cases", devices))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_random_windows(devices: int) -> None:
    _check(run_cases("tests.devices.window_cases", devices))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 8])
def test_ordinary_programs(devices: int) -> None:
    _check(run_cases("tests.devices.ordinary_cases", devices))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
def test_programs_of_the_corpus(devices: int) -> None:
    _check(run_cases("tests.devices.corpus_cases", devices))


@pytest.mark.slow
def test_gradients_are_summed_once_per_step(quick: dict[str, Any]) -> None:
    """All gradients of a step travel in one collective; the text has the first iteration and the others."""
    assert quick["case_optimiser_of_the_library"] == {"all-reduce": 2}


def _check(found: dict[str, Any]) -> None:
    assert found, "nothing was run"
    for name, result in found.items():
        assert not (isinstance(result, dict) and "failed" in result), f"{name}: {result['failed']}"
