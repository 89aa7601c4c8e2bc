"""The test tools themselves: golden files and the runner of Markdown pages."""

import re
from pathlib import Path

import pytest

from tests.lanes import THOROUGH

ROOT = Path(__file__).parent.parent


@pytest.fixture
def golden_project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project whose one test compares the text in `text.txt` with the golden file `sum`."""
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider")
    tests = pytester.mkdir("tests")
    (tests / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tests / "ir").mkdir()
    (tests / "ir" / "test_text.py").write_text(
        "from pathlib import Path\ndef test_sum(golden):\n    golden('sum', Path('text.txt').read_text())\n"
    )
    (pytester.path / "text.txt").write_text("y[t] = x[t]\n")
    return pytester


def test_missing_golden_file_fails_and_names_the_command(golden_project: pytest.Pytester) -> None:
    result = golden_project.runpytest_inprocess("tests")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*tests/golden/ir/test_text/sum.txt does not exist*",
            "*-m pytest 'tests/ir/test_text.py::test_sum' --update-golden",
        ]
    )


def test_update_golden_writes_the_file_and_then_it_matches(golden_project: pytest.Pytester) -> None:
    golden_project.runpytest_inprocess("tests", "--update-golden").assert_outcomes(passed=1)
    written = golden_project.path / "tests/golden/ir/test_text/sum.txt"
    assert written.read_text() == "y[t] = x[t]\n"
    golden_project.runpytest_inprocess("tests").assert_outcomes(passed=1)


def test_changed_text_fails_with_a_diff(golden_project: pytest.Pytester) -> None:
    golden_project.runpytest_inprocess("tests", "--update-golden")
    (golden_project.path / "text.txt").write_text("y[t] = x[t - 1]\n")
    result = golden_project.runpytest_inprocess("tests")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["-y?t? = x?t?", "+y?t? = x?t - 1?"])


def test_without_a_browser_one_line_says_what_is_missing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest((ROOT / "tests" / "browser" / "conftest.py").read_text())
    pytester.makepyfile("def test_one(page): pass", test_other="def test_two(page): pass")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("POLYRHYTHM_BROWSER", raising=False)
    result = pytester.runpytest_inprocess("-ra", "-p", "no:cacheprovider")
    result.assert_outcomes(skipped=2)
    assert str(result.stdout).count("apt-get install chromium") == 1
    monkeypatch.setenv("POLYRHYTHM_BROWSER", "required")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(errors=2)


@pytest.fixture
def page_project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    return pytester


def test_blocks_of_a_page_share_names(page_project: pytest.Pytester) -> None:
    (page_project.path / "page.md").write_text(
        "# Page\n\n```python\nx = 3\n```\n\n"
        "- in a list\n\n  ```python\n  >>> x + 1\n  4\n  >>> y = 1\n  ```\n\n"
        "```python\nassert y == 1\n```\n"
        "```python no-run\nassert x == 4\n```\n"
    )
    page_project.makeini("[pytest]\nmarkers = slow")
    page_project.runpytest_inprocess("-m", "not slow").assert_outcomes(passed=1)
    page_project.runpytest_inprocess("-m", "slow").assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ("```python\nx = 1\nx.missing\n```\n", "*page.md:5: AttributeError*"),
        ("```python\n>>> 1 + 1\n3\n```\n", "*page.md*, line 4*"),
    ],
)
def test_a_failing_block_names_the_line_of_the_page(page_project: pytest.Pytester, block: str, shown: str) -> None:
    (page_project.path / "page.md").write_text("# Page\n\n" + block)
    result = page_project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([shown])


def test_what_make_thorough_runs_is_there() -> None:
    for file, entries in THOROUGH.items():
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        names = [entry.partition("[")[0] for entry in entries if entry != "*"]
        assert [name for name in names if f"def {name}(" not in text] == [], file
    command = re.search(r"pytest .*-m \"(thorough and not slow)\"", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert command
    assert "make thorough" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
