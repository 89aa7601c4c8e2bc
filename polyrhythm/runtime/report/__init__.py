"""One self-contained HTML page about a program: `program.report("report.html")`.

`gather.py` collects what the compiler decided as plain data, `page.html`, `page.css` and `page.js` show it. The page
needs no network, and everything in it is joined by the user's lines: what a line became in the graph, in the loops and
in storage has the same key.
"""

from polyrhythm.runtime.report.gather import gather
from polyrhythm.runtime.report.page import write

__all__ = ["gather", "write"]
