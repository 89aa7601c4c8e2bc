"""Programs on 1, 2 and 4 processes of this machine, connected by gloo: equal, resumed, and refused if they disagree."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from tests.devices import process_script
from tests.devices.mesh_cases import training

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("process_script.py")


def launch(processes: int, folder: Path, what: str, kill: int = 0, restarts: int = 0) -> tuple[dict[str, Any], str]:
    """What the first process found, and what all of them printed."""
    folder.mkdir(exist_ok=True)
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
    environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "polyrhythm.cli", "launch", "-n", str(processes), "--restarts", str(restarts)]
    command += [str(SCRIPT), str(folder), what, str(kill)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / f"{what}.json").read_text()), done.stdout + done.stderr


def _close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in ("losses", "w1", "w2", "m1"):
        assert np.allclose(found[name], expected[name], rtol=2e-5, atol=2e-5), name


def test_two_processes_disagree(tmp_path: Path) -> None:
    """Errors in all of them; one writes the log."""
    found, said = launch(2, tmp_path, "disagree")
    assert (tmp_path / "log.csv").read_text().split() == ["iteration,return", "0,0.5", "1,0.5", "2,0.5"]
    assert said.count("logged") == 3
    assert found["texts"] == [
        "process 1 has other values than process 0 of the input 'y'",
        "process 1 has other bounds or another seed than process 0",
        "process 1 has another program than process 0",
    ]


def test_a_killed_process_and_its_checkpoint(tmp_path: Path) -> None:
    """Two processes of which one is killed are started anew; one process goes on from what they wrote."""
    outputs, _, _, _, I = training()
    expected = pr.compile(outputs)(**process_script.data(40), bounds={I: process_script.ITERATIONS})
    killed, said = launch(2, tmp_path, "train", kill=2, restarts=1)
    assert "SIGKILL" in said
    assert killed["before"], "it began anew instead of going on"
    _close(killed, expected)
    assert list((tmp_path / "checkpoints").glob("*.part-*-of-2.safetensors"))
    resumed = process_script.resume(tmp_path, 0)
    assert resumed["before"]
    assert max(resumed["before"]) < process_script.ITERATIONS
    _close(resumed, expected)


@pytest.mark.slow
def test_training_on_one_two_and_four_processes(tmp_path: Path) -> None:
    """A run whose last process is killed is started anew and ends like the others; 4 processes go on as 2."""
    expected, _ = launch(1, tmp_path / "one", "train")
    two, said = launch(2, tmp_path / "two", "train")
    assert said.count("is done") == 2
    _close(two, expected)
    killed, said = launch(4, tmp_path / "four", "train", kill=3, restarts=2)
    assert "SIGKILL" in said
    assert killed["before"], "it began anew instead of going on"
    four, _ = launch(4, tmp_path / "undisturbed", "train")
    _close(killed, four)
    assert killed["losses"] == four["losses"], "not the same bits as an undisturbed run"
    parts = list((tmp_path / "four" / "checkpoints").glob("*.part-*-of-4.safetensors"))
    assert parts
    resumed, _ = launch(2, tmp_path / "four", "resume")
    assert resumed["before"]
    assert max(resumed["before"]) < 12
    _close(resumed, expected)


@pytest.mark.slow
def test_decoding_on_one_two_and_four_processes(tmp_path: Path) -> None:
    expected, _ = launch(1, tmp_path / "one", "decode")
    for processes in (2, 4):
        found, _ = launch(processes, tmp_path / str(processes), "decode")
        for way in ("whole", "local"):
            assert np.allclose(found[way], expected["whole"], rtol=1e-5, atol=1e-5)
