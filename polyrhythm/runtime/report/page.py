"""The page: data, style and script put into one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any


def written(data: Mapping[str, Any]) -> str:
    """The page about what `gather` found.

    >>> "<title>report of x</title>" in written({"title": "report of x"})
    True
    """
    folder = files(__package__)
    page, style, script = (
        folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    # A `</script>` inside of a source line must not end the data.
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("</", "<\\/")
    for mark, value in {"TITLE": escape(data["title"]), "STYLE": style, "SCRIPT": script, "DATA": text}.items():
        page = page.replace(f"@{mark}@", value, 1)
    return page


def write(data: Mapping[str, Any], path: str | Path) -> Path:
    """Write the page to a file; folders on the way are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(written(data), encoding="utf-8")
    return target
