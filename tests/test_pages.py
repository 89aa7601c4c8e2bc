"""What the documentation has to have: pages, headings and files that people look for."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

HOW_TO = {
    "data": "Data larger than memory",
    "see-the-loss": "See the loss while training",
    "weights": "Save and load weights",
    "evaluate-a-policy": "Evaluate a policy",
    "own-environment": "Use your own environment",
    "own-layer": "Write your own layer",
    "own-algorithm": "Write your own algorithm",
    "chat": "Chat with a model",
    "fine-tune": "Fine-tune a model",
    "devices": "Several devices",
    "export": "Export a program",
    "nan": "Find a NaN",
    "profile": "Find where the time goes",
    "memory": "Make it fit in memory",
}
EXAMPLES = (
    *("decoding", "attention_patterns", "kalman_smoother", "hmm", "ctc", "mamba", "linear_attention", "dqn"),
    *("ppo_transformer", "dreamer", "maml", "diffusion", "streaming_audio", "ragged", "moe_accelerator"),
    *("sharded_training", "lora"),
)
NEVER_RUN = {
    "docs/llm.md": 2,
    "docs/programs.md": 1,
    "docs/rl.md": 2,
    "docs/how-to/chat.md": 1,
    "docs/how-to/devices.md": 1,
    "docs/how-to/profile.md": 1,
}
"""How many blocks of a page only `make pages` runs: they need weights, several devices, or minutes."""


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def headings(path: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", text(path), re.MULTILINE)


@pytest.mark.parametrize("name", HOW_TO)
def test_how_to_pages_begin_with_what_is_asked_and_have_code(name: str) -> None:
    page = f"docs/how-to/{name}.md"
    assert headings(page)[0] == HOW_TO[name]
    assert "```python" in text(page)


@pytest.mark.parametrize("page", sorted(path.name for path in (DOCS / "tutorial").glob("*.md")))
def test_steps_of_the_tutorial_print_their_schedule_and_memory(page: str) -> None:
    shown = text(f"docs/tutorial/{page}")
    assert re.search(r">>> print\(.*(\.schedule|\.explain\()", shown), "no schedule"
    assert re.search(r">>> .*\.memory", shown), "no memory"


def test_the_tutorial_has_eight_steps_each_with_a_link_to_the_next() -> None:
    steps = sorted((DOCS / "tutorial").glob("*.md"))
    assert len(steps) == 8
    for step, following in pairwise(steps):
        assert f"]({following.name})" in step.read_text(encoding="utf-8")


def test_what_pages_are_about() -> None:
    concepts = headings("docs/concepts.md")
    for subject in ("Time dims", "Definitions", "Schedules", "Storage", "What is proved"):
        assert subject in concepts
    compared = headings("docs/comparison.md")
    for peer in ("`jax.lax.scan`", "`torch.compile`", "sequence-layers", "PureJaxRL", "The published systems"):
        assert peer in compared
    nobody_wrote = [heading for heading in headings("docs/index.md") if heading.endswith("that nobody wrote")]
    assert len(nobody_wrote) == 3


def test_few_blocks_are_not_run() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    found = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8").count("```python no-run") for page in pages}
    del found["docs/examples.md"]  # the examples themselves, which tests/test_examples.py runs
    assert {page: count for page, count in found.items() if count > NEVER_RUN.get(page, 0)} == {}


def test_examples_that_people_ask_for_are_shown() -> None:
    shown = text("docs/examples.md")
    assert [name for name in EXAMPLES if f'"examples/{name}.py"' not in shown] == []


def test_the_quickstart_names_every_extra() -> None:
    extras = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]
    shown = re.findall(r"`polyrhythm\[(\w+)\]`", text("docs/quickstart.md"))
    assert sorted(shown) == sorted(extras.keys() - {"dev", "oracles"})


def test_the_readme_links_everything() -> None:
    readme = text("README.md")
    for word in ("pip install polyrhythm", "docs/llm.md", "docs/rl.md", "docs/streams.md", "polyrhythm train", "SOSP"):
        assert word in readme
    for path in re.findall(r"`((?:docs|examples)/[\w./-]+)`", readme):
        assert (ROOT / path).exists(), path


def test_files_of_the_project() -> None:
    for name in ("LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "CONTRIBUTING.md"):
        assert (ROOT / name).stat().st_size > 200, name
    assert len(list((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))) >= 3
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert {"torch", "llm", "serve", "rl", "docs"} <= project["optional-dependencies"].keys()
    assert project["optional-dependencies"]["torch"] == ["torch>=2.6"], "a range; the pin is in constraints.txt"
    declared = {line.rsplit(" ", 1)[1] for line in project["classifiers"] if "Python :: 3." in line}
    assert declared == {"3.11", "3.12", "3.13", "3.14"}
    assert project["urls"]
    assert all(url in text("CITATION.cff") for url in project["urls"].values())
    assert all(
        word in text("CITATION.cff") for word in ("cff-version", "references:", f"version: {project['version']}")
    )
