"""Errors of the stream package: one class per situation, each with the user's line and a fix.

The docstring of a class is its documentation page: when it happens, a program that fails, and the corrected one.
"""

from __future__ import annotations

from polyrhythm.errors import PolyrhythmError


class StreamError(PolyrhythmError):
    """Base of every error of the stream package.

    >>> from polyrhythm.stream import tile
    >>> try:
    ...     tile("token", 0)
    ... except StreamError as error:
    ...     print(type(error).__name__, error.fix, sep=": ")
    DirectiveMismatch: give a whole number of at least 1
    """


class ShapeMismatch(StreamError):
    """Two streams must agree in shape and do not, or a size does not fit.

    >>> from polyrhythm.stream import expand, map_tiles, promote, source, static
    >>> rows = source("rows", [[1.0, 2.0]], (static(1), static(2)))
    >>> bias = source("bias", [3.0], (static(1),))
    >>> map_tiles("add", rows, bias)
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.ShapeMismatch: add: stream rows has shape [1, 2], stream bias has shape [1]
    ...

    Corrected, by repeating the bias for every row:

    >>> print(map_tiles("add", rows, expand(promote(bias, 0), rows, 1)))
    add: [1, 2] of tile[1,1] f32
    """


class RankOutOfRange(StreamError):
    """An operator was asked to work on a dim that the stream does not have. Dims count from the innermost, 0.

    >>> from polyrhythm.stream import flatten, source, static
    >>> grid = source("grid", [[1.0, 2.0]], (static(1), static(2)))
    >>> flatten(grid, 1, 2)
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.RankOutOfRange: flatten: dims 1 to 2 of a stream of shape [1, 2]
    ...

    Corrected:

    >>> print(flatten(grid, 0, 1))
    flatten: [2] of tile[1,1] f32
    """


class ElementMismatch(StreamError):
    """An operator was given elements of a type it cannot take.

    >>> from polyrhythm.stream import OffChip, accum, linear_store, map_tiles, dynamic, source, static
    >>> tokens = source("tokens", [[1.0, 2.0]], (static(1), dynamic("n")))
    >>> packed = accum("pack_rows", tokens)
    >>> linear_store(OffChip("y", 8, 1), packed)
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.ElementMismatch: linear_store: stream accum pack_rows carries tile[n,1] f32, whose shape is dynamic
    ...

    Corrected: store the rows themselves.

    >>> linear_store(OffChip("y", 8, 1), tokens).name
    'store y'
    """  # noqa: E501


class UnboundSymbol(StreamError):
    """A symbolic metric was evaluated without a value for one of its symbols.

    >>> from polyrhythm.stream import symbol
    >>> symbol("tokens").evaluate({})
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.UnboundSymbol: the symbol tokens has no value
    ...

    Corrected:

    >>> symbol("tokens").evaluate({"tokens": 3})
    3
    """


class OpenFeedback(StreamError):
    """A feedback stream is read but was never connected to its producer.

    >>> from polyrhythm.stream import F32, Program, Tile, feedback, map_tiles, source, static
    >>> numbers = source("numbers", [1.0, 2.0], (static(2),))
    >>> state = feedback("state", (static(2),), Tile(1, 1, F32), initial=[0.0])
    >>> total = map_tiles("add", numbers, state.stream)
    >>> Program(total)
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.OpenFeedback: the feedback stream state was never connected
    ...

    Corrected:

    >>> state.connect(total)
    >>> len(Program(total).nodes)
    4
    """


class StopMismatch(StreamError):
    """At run time, two streams that must advance together closed different dims, or one ended early.

    It means that a restated shape was not true, or that a dim had to be padded.

    >>> from polyrhythm.stream import Program, restate, simulate, source, static, zip_streams
    >>> pair = source("pair", [[1.0, 2.0]], (static(1), static(2)))
    >>> column = source("column", [[1.0], [2.0]], (static(2), static(1)))
    >>> simulate(Program(zip_streams(pair, restate(column, pair.shape))))
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.StopMismatch: zip: the streams pair and column close different dims
    ...

    Corrected:

    >>> from polyrhythm.stream import flatten
    >>> simulate(Program(zip_streams(flatten(pair, 0, 1), flatten(column, 0, 1)))).cycles
    0
    """


class DataMismatch(StreamError):
    """What flows contradicts what the program says: an address outside its tensor, a selector that names no target.

    Below, a source has more numbers than it declares. Formulae follow what is declared, so that is checked in a run.

    >>> from polyrhythm.stream import Program, simulate, source, static
    >>> simulate(Program(source("lengths", [3, 5, 8], (static(2),))))
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.DataMismatch: source lengths: its shape is [2], and dim 0 has 3 entries
    ...

    Corrected:

    >>> simulate(Program(source("lengths", [3, 5, 8], (static(3),)))).cycles
    0
    """


class Deadlock(StreamError):
    """Nothing can run: every process waits for another one. The message names the cycle and the full FIFOs.

    Below, the sum needs all four numbers before it sends one, and meanwhile the other branch must keep them.

    >>> from polyrhythm.stream import Hardware, Program, accum, expand, promote, simulate, source, static
    >>> x = source("x", [[1.0, 2.0, 3.0, 4.0]], (static(1), static(4)))
    >>> spread = expand(promote(accum("add", x), 0), x, 1)
    >>> simulate(Program(spread), Hardware(fifo_depth=1))
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.Deadlock: deadlock at cycle ...: ...
      full FIFOs: broadcast x.1 (depth 1)
    ...

    Corrected, with FIFOs that hold what one branch is behind:

    >>> simulate(Program(spread), Hardware(fifo_depth=4)).cycles
    4
    """

    fifos: tuple[str, ...] = ()


class CapacityExceeded(StreamError):
    """A run needs more on-chip memory, FIFOs included, than the hardware has. The fix names what holds most of it.

    >>> from polyrhythm.stream import Hardware, Program, bufferize, simulate, source, static, streamify
    >>> held = streamify(bufferize(source("x", [[1.0] * 64], (static(1), static(64))), 1))
    >>> simulate(Program(held), Hardware(on_chip_capacity=256))
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.CapacityExceeded: 776 bytes of on-chip memory and ... are needed, and the hardware has 256
    ...

    Corrected:

    >>> simulate(Program(held), Hardware(on_chip_capacity=4096)).cycles
    128
    """


class OperationNotStreamable(StreamError):
    """The lowering met an operation that no stream operator can do, or that needs more at once than a tile holds.

    >>> import polyrhythm as pr
    >>> from polyrhythm.stream import lower
    >>> t, T = pr.dim("t")
    >>> noise = pr.normal((), dims=(t,))
    >>> lower(noise, bounds={T: 3})
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.OperationNotStreamable: ... is computed by random_bits, which no stream operator can do
    ...

    Corrected: what cannot be streamed is an input.

    >>> noise = pr.input("noise", (), (t,))
    >>> lower(2 * noise, inputs={"noise": [1.0, 2.0]})().tolist()
    [2.0, 4.0]
    """


class AccessNotStreamable(StreamError):
    """The lowering met a read that a stream cannot serve: of later steps of a recurrence, or across tiles.

    >>> import polyrhythm as pr
    >>> from polyrhythm.stream import lower
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> rest = pr.recurrent((), (t,))
    >>> rest[T - 1] = x[T - 1]
    >>> rest[t - 1] = x[t - 1] + rest
    >>> lower(rest, inputs={"x": [1.0, 2.0, 3.0]})
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.AccessNotStreamable: ... needs a value of rest that is later in the stream
    ...

    Corrected: a sum over later steps needs no recurrence.

    >>> lower(x[t:T].sum(0), inputs={"x": [1.0, 2.0, 3.0]})().tolist()
    [6.0, 5.0, 3.0]
    """


class DirectiveMismatch(StreamError):
    """A directive that makes no sense, names no dim of the program, or does not fit how the dim is used.

    A schedule gives the values of the program or is refused. `works` lists the directives of it that lower together.

    >>> import polyrhythm as pr
    >>> from polyrhythm.stream import lower, tile
    >>> t, T = pr.dim("t")
    >>> x = pr.input("x", (), (t,))
    >>> lower(x[0:T].sum(0), [tile("row", 4)], {"x": [1.0, 2.0, 3.0, 4.0]})
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.DirectiveMismatch: tile('row', 4): the program has no dim row
    ...

    Corrected:

    >>> lower(x[0:T].sum(0), [tile(t, 4)], {"x": [1.0, 2.0, 3.0, 4.0]})().item()
    10.0
    """

    works: tuple[object, ...] | None = None
