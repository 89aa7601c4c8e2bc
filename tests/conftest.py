"""Fixtures every test may use: golden files, and one deterministic hypothesis profile."""

import difflib
import gc
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.compiling import context, keep_nothing, share_contexts, simple_code
from tests.lanes import is_thorough

TESTS = Path(__file__).parent

# The quick lane gives the same verdict every time; exploring is the business of `make fuzz`.
settings.register_profile(
    "quick", derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """The quick lane, and what it leaves to `make thorough`, ask XLA for simple code; its passes run as ever.

    The slow lane, benchmarks and `test_a_sample_runs_with_the_code_that_users_get` have everything on.
    """
    if "not slow" in config.getoption("markexpr"):
        simple_code()
    keep_nothing()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make thorough` runs."""
    for item in items:
        if item.path.is_relative_to(TESTS) and is_thorough(item.path.relative_to(TESTS).as_posix(), item.name):
            item.add_marker("thorough")


# What modules, compiled programs and caches hold lives to the end, and looking through it for garbage again and again
# takes a tenth of the time: young objects are looked at less often, and those of a file no more after its last test.
gc.set_threshold(200_000, 20, 1_000)
SECONDS = 5
"""How often all garbage is collected, at the end of a file."""
collected = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    global collected
    share_contexts()
    done = yield
    if (nextitem is None or nextitem.path != item.path) and time.monotonic() > collected + SECONDS:
        context.cache_clear()
        gc.collect()
        gc.freeze()
        collected = time.monotonic()
    return done


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files of the tests that run, instead of comparing with them",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with `tests/golden/<module>/<name>.txt`.

    The module is the test file's path below `tests`, so `tests/compiler/ir/test_text.py` keeps its
    files in `tests/golden/compiler/ir/test_text/`; `folder` names another place.
    """
    own = request.path.relative_to(TESTS).with_suffix("")
    root = request.config.rootpath
    command = f".venv/bin/python -m pytest '{request.node.nodeid}' --update-golden"

    def compare(name: str, text: str, folder: str = str(own)) -> None:
        path = TESTS / "golden" / folder / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        shown = path.relative_to(root)
        if not path.exists():
            pytest.fail(f"{shown} does not exist. To write it:\n  {command}", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if text == expected:
            return
        diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(shown), "this run", lineterm="")
        pytest.fail(
            "\n".join([*diff, "", "If the change is meant, review it after:", f"  {command}"]),
            pytrace=False,
        )

    return compare
