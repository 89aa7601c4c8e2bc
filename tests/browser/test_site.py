"""The documentation site: it builds with every link checked, and its pages open and can be searched."""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
QUESTIONS = 30


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a link or an anchor that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]  # -q would hide warnings
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert all((site / page).exists() for page in pages)
    assert len([page for page in pages if page.parts[0] == "tutorial"]) == 8
    assert "def main" in (site / "examples.html").read_text(encoding="utf-8").replace("</span>", "").replace(
        '<span class="k">', ""
    ).replace('<span class="w">', "").replace('<span class="nf">', "")


def test_every_question_has_an_answer(site: Path) -> None:
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    part = text.split("<!-- questions -->")[1].split("<!-- end -->")[0]
    rows = [line for line in part.split("\n") if line.startswith("| ") and "](" in line]
    assert len(rows) >= QUESTIONS
    for row in rows:
        for target in re.findall(r"\]\(([^)]+)\)", row):
            page, _, anchor = target.partition("#")
            shown = (site / page).with_suffix(".html").read_text(encoding="utf-8")
            assert not anchor or f'id="{anchor}"' in shown, f"{row}: {target}"


def test_signatures_are_shown(site: Path) -> None:
    shown = re.sub(r"<[^>]+>", "", (site / "api" / "programs.html").read_text(encoding="utf-8"))
    assert "memory_budget" in shown
    assert "check_nan" in shown


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served: the search of a page loads its index."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_search_finds_pages(browser: Any, address: str) -> None:
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{address}/index.html")
    page.click(".md-search__input", force=True)
    page.type(".md-search__input", "replay buffer")
    page.wait_for_selector(".md-search-result__item a", timeout=20_000)
    found = page.locator(".md-search-result__item a").evaluate_all("links => links.map(a => a.href)")
    assert any("own-algorithm" in link for link in found), found
    page.goto(found[0])
    assert page.title().endswith("Polyrhythm")
    assert not errors
    page.close()
