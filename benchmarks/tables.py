"""`python -m benchmarks.tables [--take NAME ...]`: write `docs/benchmarks.md` from the results that are kept.

`benchmarks/results` has one JSON file for each benchmark, with the command, the machine, the day and the rows.
`--take loops prefill` copies the newest ones from `build/benchmarks` first, where a run leaves them. The text of the
page is `benchmarks/page.md`: a test makes the page again and compares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS, OUT, duration, where_and_when

RESULTS = Path(__file__).parent / "results"
TEXT = Path(__file__).parent / "page.md"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

Row = Mapping[str, Any]


def page() -> str:
    """The page: its text, with a table in the place of each `{name}`."""
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    return "".join(f"{_shown(line[1:-1]) if line.startswith('{') else line}\n" for line in lines)


def names() -> list[str]:
    """The results that the page shows."""
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    return [line[1:-1] for line in lines if line.startswith("{")]


def _shown(name: str) -> str:
    kept = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return "\n".join([f"`{kept['command']}`, {kept['machine']}, {kept['when']}.\n", *_tables(kept["results"])]).rstrip()


def _tables(results: Sequence[Row]) -> Iterator[str]:
    """Races, facts, or rows of any columns: each kind is a table."""
    races = [result for result in results if result.get("kind") == "result"]
    facts = [result for result in results if result.get("kind") == "fact"]
    rows = [result for result in results if "kind" not in result]
    for some in (list(_raced(races)), list(map(_told, facts)), rows):
        if some:
            columns = list(dict.fromkeys(column for row in some for column in row))
            yield _line(columns)
            yield f"|{'---|' * len(columns)}"
            yield from (_line([str(row.get(column, "")) for column in columns]) for row in some)
            yield ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _raced(races: Sequence[Row]) -> Iterator[Row]:
    """A row for each peer."""
    for result in races:
        for number, (peer, ratio) in enumerate(result["ratios"].items()):
            limit = result["limits"].get(peer)
            lost = limit is not None and min(ratio, result["processor_ratios"][peer]) > limit
            yield {
                "program": result["name"] if number == 0 else "",
                "peer": peer,
                "ours": duration(result["seconds"][OURS]),
                "peer's": duration(result["seconds"][peer]),
                "ratio": f"**{ratio:.2f}**, lost" if lost else f"{ratio:.2f}",
                "processor": f"{result['processor_ratios'][peer]:.2f}",
                "fastest": f"{result['fastest'][OURS] / result['fastest'][peer]:.2f}",
                "limit": "" if limit is None else f"{limit:.2f}",
            }


def _told(fact: Row) -> Row:
    limit = "" if fact["limit"] is None else f"{fact['limit']:g}"
    return {"what": fact["name"], "value": f"{fact['value']:.3g} {fact['unit']}".strip(), "limit": limit}


def take(name: str) -> None:
    """Keep what the newest run of a benchmark has left, with where and when it ran."""
    kept = json.loads((OUT / f"{name}.json").read_text(encoding="utf-8"))
    kept = {**where_and_when(name), **kept}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Take over new results, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--take", nargs="*", default=[], help="results of build/benchmarks to take over")
    for name in parser.parse_args().take:
        take(name)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
