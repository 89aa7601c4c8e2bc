"""What the pages need beside Markdown: a block that the tests do not run is shown like any other."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Take the mark for the tests out of the blocks.

    >>> on_page_markdown("```python no-run")
    '```python'
    """
    return markdown.replace("```python no-run", "```python")
