"""Rows of a long benchmark, each kept as soon as it is there: a run may be stopped, resumed, and done in parts.

A row is known by some of its columns. What the file already has is not measured again, unless that is asked for. A
selection such as `config=12x768,T=4096,system=ours|jax expert` says which rows a run is about.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class Rows:
    """The rows of a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "some.json"
    >>> rows = Rows(path, ("T", "system"))
    >>> rows.add({"T": 8, "system": "ours", "ms": 1.5})
    >>> Rows(path, ("T", "system")).get({"T": 8, "system": "ours"})["ms"]
    1.5
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path, self.keys = path, tuple(keys)
        self.facts: Entry = {}
        self.entries: list[Entry] = []
        if path.exists():
            kept = json.loads(path.read_text())
            self.entries = kept.pop("results")
            self.facts = kept

    def get(self, what: Mapping[str, Any]) -> Entry | None:
        """The row with these columns; one that failed counts as not there."""
        found = self.entry(what)
        return None if found is None or "failed" in found else found

    def add(self, entry: Entry) -> None:
        """Keep a row, in the place of an older one; when it was measured and under which load is noted."""
        noted = {**entry, "at": time.strftime("%Y-%m-%d %H:%M"), "load": round(os.getloadavg()[0], 1)}
        old = self.entry(entry)
        if old is None:
            self.entries.append(noted)
        else:
            self.entries[self.entries.index(old)] = noted
        self.save()

    def save(self) -> None:
        """One line for each row. A run that is stopped meanwhile leaves the old file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = ",\n".join(json.dumps(entry) for entry in self.entries)
        facts = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in self.facts.items())
        new = self.path.with_suffix(".new")
        new.write_text(f'{{\n{facts}"results": [\n{rows}\n]\n}}\n')
        new.replace(self.path)

    def entry(self, what: Mapping[str, Any]) -> Entry | None:
        """The row with these columns, whether it finished or not."""
        key = [what[name] for name in self.keys]
        return next((entry for entry in self.entries if [entry[name] for name in self.keys] == key), None)


class Only:
    """A selection of rows by their columns.

    >>> some = Only("T=256|1024,system=ours")
    >>> some({"T": 256, "system": "ours"}), some({"T": 4096, "system": "ours"})
    (True, False)
    """

    def __init__(self, text: str | None) -> None:
        parts = [part.split("=", 1) for part in (text or "").split(",") if part]
        self.wanted = {name.strip(): values.split("|") for name, values in parts}

    def __call__(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is among them."""
        unknown = self.wanted.keys() - row.keys()
        if unknown:
            raise SystemExit(f"--only: no column {', '.join(sorted(unknown))}; there are {', '.join(row)}")
        return all(str(row[name]) in values for name, values in self.wanted.items())


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark of rows has."""
    parser.add_argument("--only", help="some rows: columns and values, config=4x256,T=256|1024 for example")
    parser.add_argument("--again", action="store_true", help="measure again what the file already has")
    parser.add_argument("--limit", type=int, default=900, help="the seconds that one row of one system may take")


def own_peak_mb() -> float:
    """The peak memory of this process. What `getrusage` says begins with that of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
