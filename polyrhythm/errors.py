"""Every error a user can meet: one class per situation.

A message says what is wrong, shows the user's line, gives a concrete counterexample where there is one, and ends
with a fix. The docstring of a class is its documentation page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyrhythm.source import Source, here


class PolyrhythmError(Exception):
    """The base of all errors.

    `at` is the user's line (by default the one being executed), `point` a concrete counterexample,
    `outcome` what happens there, and `also` names further lines that take part.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str,
        at: Source | None = None,
        point: Mapping[Any, int] | None = None,
        outcome: str | None = None,
        also: tuple[tuple[str, Source], ...] = (),
    ) -> None:
        self.what, self.fix, self.at, self.also = what, fix, at or here(), also
        self.point = {str(symbol): value for symbol, value in point.items()} if point is not None else None
        lines = [what, f"  at {self.at}: {self.at.text}"]
        lines += [f"  {label} {source}: {source.text}" for label, source in also]
        if self.point:
            values = ", ".join(f"{symbol} = {value}" for symbol, value in self.point.items())
            lines.append(f"  for example at {values}" + (f": {outcome}" if outcome else ""))
        lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))


class GapError(PolyrhythmError):
    """A recurrent tensor has points that no definition covers."""


class OverlapError(PolyrhythmError):
    """Two definitions of a recurrent tensor cover the same point."""


class OutOfRangeError(PolyrhythmError):
    """A read may fall outside the tensor it reads."""


class UndefinedError(PolyrhythmError):
    """A recurrent tensor is read but never given a definition."""


class CycleError(PolyrhythmError):
    """A value depends on itself: the cycle makes no progress through time."""


class ProgressError(PolyrhythmError):
    """A recursive definition could not be shown to make progress, and no cycle was found either."""


class ShapeError(PolyrhythmError):
    """Shapes do not fit together."""


class RaggedShapeError(PolyrhythmError):
    """Stacking steps whose shapes differ would not give an array."""


class DTypeError(PolyrhythmError):
    """Element types do not fit together."""


class OperandError(DTypeError):
    """Something that is neither a tensor nor a number nor an array where a tensor is needed."""


class AxisError(PolyrhythmError):
    """An axis that the tensor does not have."""


class EmptyAxisError(PolyrhythmError):
    """A reduction without an identity over an axis that may be empty."""


class UnknownDimError(PolyrhythmError):
    """An index names a dim that the tensor does not have."""


class UnboundDimError(PolyrhythmError):
    """The right side of a definition varies along a dim that the left side does not bind."""


class IndexingError(PolyrhythmError):
    """A temporal index that does not fit the tensor's dims."""


class DataIndexError(IndexingError):
    """An index whose value is data where the compiler must know it."""


class IndexValueError(DTypeError):
    """An index expression is made of something that is not an integer."""


class NonAffineError(PolyrhythmError):
    """An index expression that is not quasi-affine."""


class LeftSideError(IndexingError):
    """The left side of a definition cannot be solved for the steps it defines."""


class NotInjectiveError(PolyrhythmError):
    """The left side of a definition sends two steps to one point."""


class ConditionValueError(PolyrhythmError):
    """An index condition was used where Python needs True or False."""


class IterationError(PolyrhythmError):
    """Python tried to iterate over a tensor."""


class DeclarationError(PolyrhythmError):
    """Dims or extents that cannot be declared."""


class DefinitionError(PolyrhythmError):
    """A definition that cannot stand, such as a second `otherwise`."""


class DuplicateNameError(PolyrhythmError):
    """Two different inputs, parameters or random sites of one program share a name."""


class MissingInputError(PolyrhythmError):
    """The program was called without one of its inputs."""


class UnknownInputError(PolyrhythmError):
    """The program was called with an input it does not have."""


class InputShapeError(PolyrhythmError):
    """An input array has the wrong shape."""


class InputDTypeError(PolyrhythmError):
    """An input array has elements of the wrong kind."""


class MissingBoundError(PolyrhythmError):
    """A bound can neither be read off the inputs nor was it given."""


class BoundsError(PolyrhythmError):
    """Two sources disagree about a bound, or a bound exceeds its maximum."""


class RequirementError(PolyrhythmError):
    """The program needs a larger bound than it was called with."""


class UntilError(PolyrhythmError):
    """The stopping condition of a dim depends on that dim's own length, or does not fit it."""


class LengthError(PolyrhythmError):
    """A length of a ragged dim is negative or above the declared maximum."""


class HostError(PolyrhythmError):
    """A host function returned something other than what was declared."""


class EffectError(PolyrhythmError):
    """Host calls that share an effect cannot run in the order the effect demands."""
