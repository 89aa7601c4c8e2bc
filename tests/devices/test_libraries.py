"""Language models and agents on eight forced host devices; the cases say what holds."""

from typing import Any

import pytest

from tests.devices.running import run_cases


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("module", ["llm_cases", "rl_cases"])
def test_libraries_on_a_mesh(module: str, devices: int) -> None:
    found: dict[str, Any] = run_cases(f"tests.devices.{module}", devices)
    for result in found.values():
        assert "failed" not in result, result["failed"]
