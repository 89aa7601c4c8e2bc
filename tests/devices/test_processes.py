"""Programs on 1, 2 and 4 processes of this machine, connected by gloo: equal, resumed, and refused if they disagree."""

import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyrhythm as pr
from polyrhythm import llm
from polyrhythm.runtime import launching
from tests.devices import process_script
from tests.devices.mesh_programs import training

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("process_script.py")


def _environment() -> dict[str, str]:
    """That of a process with one device."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
    return {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def launch(processes: int, folder: Path, what: str, kill: int = 0, restarts: int = 0) -> tuple[dict[str, Any], str]:
    """What the first process found, and what all of them printed."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "polyrhythm.cli", "launch", "-n", str(processes), "--restarts", str(restarts)]
    command += [str(SCRIPT), str(folder), what, str(kill)]
    done = subprocess.run(command, env=_environment(), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / f"{what}.json").read_text()), done.stdout + done.stderr


def _close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in ("losses", "w1", "w2", "m1"):
        assert np.allclose(found[name], expected[name], rtol=2e-5, atol=2e-5), name


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_one_process_is_asked_to_stop(tmp_path: Path) -> None:
    """All stop where it does, which no clock decides, and go on from there."""
    outputs, _, _, _, I = training()
    expected = pr.compile(outputs)(**process_script.data(40), bounds={I: process_script.ITERATIONS})
    found, _ = launch(2, tmp_path, "interrupt")
    assert found["before"]
    assert max(found["before"]) < process_script.ITERATIONS
    _close(found, expected)


@pytest.mark.slow
def test_a_language_model_on_two_processes(tmp_path: Path) -> None:
    """Sequences or heads are spread over processes, and each has the tokens of all."""
    llm.write_random(tmp_path / "model", num_hidden_layers=1, eos_token_id=None)
    expected, _ = launch(1, tmp_path, "write")
    found, _ = launch(2, tmp_path, "write")
    assert found["tokens"] == expected["tokens"]
    assert found["tokens"][0] == found["tokens"][2]
    assert found["streamed"] == expected["streamed"]
    assert np.allclose(found["logits"], expected["logits"], atol=1e-4)


@pytest.mark.slow
def test_an_agent_on_two_processes(tmp_path: Path) -> None:
    found, _ = launch(2, tmp_path, "learn")
    for together, alone in zip(found["together"], found["alone"], strict=True):
        assert np.allclose(together, alone, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.slow
def test_others_end_when_a_process_dies_that_nobody_watches(tmp_path: Path) -> None:
    """No supervisor: the heartbeat of JAX ends the process that waits in a collective."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "polyrhythm.runtime.launching", str(SCRIPT), str(tmp_path), "train", "2"]
    own = {**_environment(), launching.ADDRESS: address, launching.COUNT: "2"}
    start = partial(subprocess.Popen, command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    running = [start(env={**own, launching.NUMBER: str(number)}) for number in range(2)]
    try:
        said = [process.communicate(timeout=200)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert running[1].returncode == -signal.SIGKILL
    assert running[0].returncode not in (0, None), said[0][-2000:]
    assert not (tmp_path / "train.json").exists()
