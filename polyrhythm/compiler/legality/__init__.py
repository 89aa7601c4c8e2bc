"""The independent checker: proves, at every compile, that the loops compute what the graph says.

It reads the graph and the Loop IR and nothing else; it shares no code with the scheduler, the storage planner or
the builder. Each proof is about one computation, one read, one pair of stores or one pair of calls, by exact
integer sets, for all values of the bounds at once. What is proved:

- *operation*: every computation is the operation, with the operands and attributes, of the definition that holds at
  its point;
- *completeness*: every point of every definition is computed exactly once, and no other (values that cost nothing
  may be made anew wherever they are read);
- *order*: whatever is read has been computed strictly before;
- *storage*: it is in the slot that is read, and nothing else has been put there since; slots exist and values fit;
  outputs hold every point at the end;
- *parallel*: no value passes from one iteration of a parallel loop to another;
- *effects*: calls that share an effect run in the order of the language, once each;
- *until*: loops that end early look at the right values, and all of the above holds however they end (see
  `stops.py`);
- *layout*: what the later passes have added to the loops, how places lie in memory and are read there, is true;
- *lanes*: iterations that run together have to themselves what they write;
- *hold*: values that are not read back from their buffers are those that the buffers hold;
- *rows*: those that run shorter than the longest leave what counts as it is;
- *growth*: a loop whose buffers grow stays inside of them.

Taken for granted: that the graph is well formed (`tests/compiler/ir/verify.py`), the requirements on bounds that are
checked at the call, and that places hold zeros at first (for the condition of `until` only).

`instances.py` says when each instance runs, `prover.py` asks the integer sets, `subject.py` ties computations to
the graph; one file per rule follows. The time grows with the number of reads times the number of stores to the
place read, since loops are cut into few pieces; see `tests/compiler/legality/test_legality.py` for what it takes.
"""

from __future__ import annotations

from polyrhythm.compiler.ir.graph import Graph
from polyrhythm.compiler.legality.completeness import check_completeness
from polyrhythm.compiler.legality.effects import check_effects
from polyrhythm.compiler.legality.failure import IllegalProgramError
from polyrhythm.compiler.legality.growth import check_growth
from polyrhythm.compiler.legality.holds import check_holds
from polyrhythm.compiler.legality.lanes import check_lanes
from polyrhythm.compiler.legality.layout import check_layout, check_splits
from polyrhythm.compiler.legality.operations import check_operations
from polyrhythm.compiler.legality.places import check_places
from polyrhythm.compiler.legality.reads import check_reads
from polyrhythm.compiler.legality.rows import check_rows
from polyrhythm.compiler.legality.stops import check_stops, scenarios
from polyrhythm.compiler.legality.subject import Subject
from polyrhythm.compiler.loops.ir import LoopProgram

__all__ = ["IllegalProgramError", "check_growth", "check_holds", "check_program", "check_rows", "check_splits"]

RULES = (
    check_operations,
    check_completeness,
    check_places,
    check_reads,
    check_effects,
    check_stops,
    check_layout,
    check_lanes,
)


def check_program(graph: Graph, program: LoopProgram) -> None:
    """Prove that the loops compute the graph; raise an IllegalProgramError otherwise."""
    for scenario in scenarios(program):
        subject = Subject(graph, program, scenario)
        for rule in RULES:
            rule(subject)
    check_holds(program)
    check_splits(program)
