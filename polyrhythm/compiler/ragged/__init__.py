"""Lengths that are data, compiled: a graph with rows of different lengths becomes one over the longest row.

`rewrite.py` is the pass, `lengths.py` computes with lengths as values and has what a caller must know to give rows and
to get them back, `operations.py` has what an operation does with an axis of which only the first part counts,
`transforms.py` what factorisations and Fourier transforms do,
`stopping.py` turns conditions that end each row at a step of its own into lengths, `independence.py` proves that what
counts does not depend on the longest row.
"""

from polyrhythm.compiler.ragged.lengths import Longest, OutputRows, Rows
from polyrhythm.compiler.ragged.rewrite import rectangular

__all__ = ["Longest", "OutputRows", "Rows", "rectangular"]
