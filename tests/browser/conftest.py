"""A page in headless Chromium, the system's package; on a machine without it the tests of this folder are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

MISSING = "browser tests need Chromium and Playwright: apt-get install chromium, pip install playwright"


def program() -> str | None:
    """The browser of this machine, if there is also what drives it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return found if find_spec("playwright") else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip here and not in a fixture, so that one line tells it of all tests; `.ci/run` wants a browser."""
    if "browser" in getattr(item, "fixturenames", ()) and program() is None:
        if os.environ.get("POLYRHYTHM_BROWSER"):
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program(), args=["--no-sandbox"])
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
