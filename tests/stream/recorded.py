"""The published traces, which the comparisons with recorded figures need."""

from __future__ import annotations

import os

import pytest

from benchmarks.streams.traces import DATA_VARIABLE, Traces, find_traces


def published_traces() -> Traces:
    """The published traces. Without them the test is skipped; where they were named and are not there it fails."""
    traces = find_traces()
    if traces.folder is None and DATA_VARIABLE in os.environ:
        pytest.fail(f"{DATA_VARIABLE} is {os.environ[DATA_VARIABLE]!r}, where no traces are")
    if traces.folder is None:
        pytest.skip(f"the recorded comparisons need the published traces ({DATA_VARIABLE})")
    return traces
