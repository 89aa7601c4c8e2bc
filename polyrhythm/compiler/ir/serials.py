"""What the compiler makes symbols for: one serial number per purpose.

A symbol is its name, its kind and its serial number. Those of the user have 0, and `terms.fresh` counts up from 1. A
symbol that the compiler makes has the number of its purpose, so that it is never the user's, whatever that is called,
nor one made for another purpose; and it is the same in every compilation, as caches and printed terms need.
"""

from __future__ import annotations

POSITION = -1
"""A position along a range of steps."""

TARGET = -2
"""A step of the node that an access reads."""

SMALLEST = -3
"""The least value that a bound may have."""

ELSEWHERE = -4
"""A ragged length at another row than the reader's."""

BEFORE = -5
"""A step at which something happens earlier."""

WRITTEN, READ = -6, -7
"""A step that is written, or read, while another is stored."""

LIMIT = -8
"""What a bound that is found only in the run is at most."""

ANOTHER = -9
"""Another step of the same dim."""

FOUND = -10
"""A bound that a stopping condition has decided."""

NEXT, LAST = -20, -21
"""The next iteration of an outermost loop, and its last."""

VALUE = -30
"""The value of a term."""

SECOND, PAST = -31, -32
"""A second iteration beside the first, and a bound as an earlier one saw it."""

SELECTED = -40
"""A position along a slice that the checker looks at."""

ENTRY, EDGE = -50, -51
"""The step of an element of a running result, and that of the newest element of an entry."""

DIAGONAL = -60
"""A diagonal of two dims."""

ROW, ROW_AXIS = -70, -71
"""The length of a row, and a position along an axis of one of its elements."""

BATCH = -80
"""How many iterations of a loop run together; of one inside of n others, BATCH - n."""

WINDOW = -100
"""The first step of an input that a run holds, and how many; of input n, WINDOW - 2 * n and the number below it."""

COUNTER = -1_000
"""The counter of a loop; of loop n, COUNTER - n."""

SEGMENT = -1_000_000
"""The first and the end of a segment of a run; of segment n, SEGMENT - 2 * n and the number below it."""

PROVED, WRITER, OTHER, LATER = -2_000_000, -3_000_000, -4_000_000, -5_000_000
"""Counters as the checker has them, of an instance and of others beside it; numbered like those of loops."""
