"""Errors of the stream package: one class per situation, each with the user's line and a fix."""

from __future__ import annotations

from polyrhythm.errors import PolyrhythmError


class StreamError(PolyrhythmError):
    """Base of every error of the stream package.

    >>> raise StreamError("the ranks differ", fix="flatten the first stream")
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.StreamError: the ranks differ
    ...
      fix: flatten the first stream
    """


class ShapeMismatch(StreamError):
    """Two streams must agree in shape and do not.

    >>> from polyrhythm.stream import source, static, zip_streams
    >>> zip_streams(source("a", [], (static(2),)), source("b", [], (static(3),)))
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.ShapeMismatch: zip: stream a has shape [2], stream b has shape [3]
    ...
    """


class RankOutOfRange(StreamError):
    """An operator was asked to work on a dim that the stream does not have.

    >>> from polyrhythm.stream import flatten, source, static
    >>> flatten(source("a", [], (static(2),)), 0, 1)
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.RankOutOfRange: flatten: dims 0 to 1 of a stream of shape [2]
    ...
    """


class ElementMismatch(StreamError):
    """An operator was given elements of a type it cannot take, such as a dynamic tile to an off-chip store.

    >>> issubclass(ElementMismatch, StreamError)
    True
    """


class UnboundSymbol(StreamError):
    """A symbolic metric was evaluated without a value for one of its symbols.

    >>> from polyrhythm.stream.expr import symbol
    >>> symbol("n").evaluate({})
    Traceback (most recent call last):
    ...
    polyrhythm.stream.errors.UnboundSymbol: the symbol n has no value
    ...
    """


class OpenFeedback(StreamError):
    """A feedback stream was read but never connected to its source.

    >>> issubclass(OpenFeedback, StreamError)
    True
    """


class StopMismatch(StreamError):
    """At run time, two streams that must advance together closed different dims, or one ended early.

    >>> issubclass(StopMismatch, StreamError)
    True
    """


class Deadlock(StreamError):
    """Nothing can run: every process waits for another one. The message names the cycle and the full FIFOs.

    >>> issubclass(Deadlock, StreamError)
    True
    """
