"""Hand-written programs with answers from plain NumPy loops, for the oracle and for every backend.

`PROGRAMS` lists them. A test builds one, calls it at each of its bounds and hands the results to `Case.check`.
"""

from tests.programs import (
    attention,
    beliefs,
    generation,
    learning,
    networks,
    ragged,
    rates,
    returns,
    sequences,
    tables,
)
from tests.programs.case import Built, Case

MODULES = (sequences, networks, attention, returns, tables, rates, beliefs, learning, generation, ragged)

PROGRAMS: list[Case] = [case for module in MODULES for case in module.CASES]

__all__ = ["PROGRAMS", "Built", "Case"]
