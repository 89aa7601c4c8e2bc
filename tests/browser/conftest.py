"""A page in headless Chromium, the system's package; on a machine without it the tests of this folder are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

MISSING = "browser tests need Chromium and Playwright: apt-get install chromium, pip install playwright"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests; `.ci/run` sets POLYRHYTHM_BROWSER, and fails without one."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        if os.environ.get("POLYRHYTHM_BROWSER"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty page that may not reach the network; a message on its console fails the test."""
    opened = browser.new_page(viewport={"width": 1400, "height": 1000})
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))

    def refuse(route: Any) -> None:
        said.append(f"asked for {route.request.url}")
        route.abort()

    opened.route("http*://**", refuse)
    yield opened
    opened.close()
    assert not said, said
