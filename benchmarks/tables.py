"""`python -m benchmarks.tables [--take NAME ...]`: write `docs/benchmarks.md` from the results that are kept.

The README's table of figures is written too; `FIGURES` says which rows it shows.

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
README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"

Row = Mapping[str, Any]

DECODING = {"model": "12 x 768", "attention": "causal", "T": "1024", "batch": "1"}
AGENT = {"environment": "synthetic", "environments": "32", "network": "2 x 64"}
TRANSFORMER = {"program": "transformer, 4 layers, width 256, T=256, batch 8, 2 steps"}
PREFILL = {"program": "prefill of 512 tokens, 4 x 256", "peer": "batched forward by hand"}
MEAN = {"program": "EMA, T=100000, all values", "peer": "scan"}
FIGURES: tuple[tuple[str, str, str, Row, str], ...] = (
    ("decoding, 12 layers of 768, T = 1024", "JAX as people write it", "decode_race", DECODING, "over A"),
    ("the same", "JAX by an expert, who has our kernel", "decode_race", DECODING, "over B"),
    (
        "the same with a window of 128",
        "JAX as people write it",
        "decode_race",
        DECODING | {"attention": "window 128"},
        "over A",
    ),
    (
        "an iteration of PPO, 32 x 250 steps",
        "JAX by an expert, one `jit`",
        "rl",
        AGENT | {"system": "JAX by an expert, one `jit`"},
        "over ours",
    ),
    ("the same", "stable-baselines3", "rl", AGENT | {"system": "stable-baselines3"}, "over ours"),
    (
        "two Adam steps of a transformer, 4 layers of 256",
        "JAX by an expert, one `jit`",
        "training",
        TRANSFORMER | {"peer": "hand-written JAX"},
        "ratio",
    ),
    ("the same", "torch eager", "training", TRANSFORMER | {"peer": "torch eager"}, "ratio"),
    ("reading a prompt", "JAX, one batched pass", "prefill", PREFILL, "ratio"),
    ("an exponential moving average, all values", "`lax.scan`", "loops", MEAN, "ratio"),
)
"""The README's rows: what, against what, and the result, row and column that say it. A column that is over ours is
turned round."""


def page() -> str:
    """The page: its text, with a table in the place of each `{name}`."""
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    return "".join(f"{_shown(line[1:-1]) if line.startswith('{') else line}\n" for line in lines)


def names() -> list[str]:
    """The results that the page shows."""
    lines = TEXT.read_text(encoding="utf-8").splitlines()
    return [line[1:-1] for line in lines if line.startswith("{")]


def readme() -> str:
    """The README with its table of figures."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    lines = [_line(("", "against", "ours over the peer")), "|---|---|---|"]
    lines += [_line((what, peer, _figure(*where))) for what, peer, *where in FIGURES]
    return before + BEGIN + "".join(f"{line}\n" for line in lines) + END + rest.split(END)[1]


def _figure(name: str, wanted: Row, column: str) -> str:
    (row,) = (row for row in _rows(name) if wanted.items() <= row.items())
    cell = row[column].replace("*", "").split()[0]
    ratio = _number(cell.strip(","))
    if column == "over ours":
        ratio = 1 / ratio
    return f"{ratio:.2f}" if ratio <= 1.05 else f"{ratio:.2f}, slower"


def _number(cell: str) -> float:
    return float(cell.replace(",", ""))


def _rows(name: str) -> Iterator[Row]:
    """The rows of a result as the page shows them; an empty cell means that of the row above."""
    results = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"]
    races = [result for result in results if result.get("kind") == "result"]
    above: dict[str, str] = {}
    for row in [*_raced(races), *(result for result in results if "kind" not in result)]:
        above = {column: str(cell) or above.get(column, "") for column, cell in row.items()}
        yield above


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
    """Take over new results, and write the page and the README's table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--take", nargs="*", default=[], help="results of build/benchmarks to take over")
    for name in parser.parse_args().take:
        take(name)
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
