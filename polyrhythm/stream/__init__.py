"""Streaming tensor programs for spatial dataflow accelerators: streams, symbolic metrics, a simulator.

Build a program from streams and operators, ask for its traffic and memory as formulae, and run it, with real values or
for timing alone. See docs/streams.md.
"""

from polyrhythm.stream.bottlenecks import Bottleneck, FifoDepths, bottleneck, smallest_fifos, utilisation_over_time
from polyrhythm.stream.deadlock import lint
from polyrhythm.stream.dims import Dim, dynamic, ragged, static
from polyrhythm.stream.directives import parallelize, tile, time_multiplex
from polyrhythm.stream.errors import (
    AccessNotStreamable,
    CapacityExceeded,
    DataMismatch,
    Deadlock,
    DirectiveMismatch,
    ElementMismatch,
    OpenFeedback,
    OperationNotStreamable,
    RankOutOfRange,
    ShapeMismatch,
    StopMismatch,
    StreamError,
    UnboundSymbol,
)
from polyrhythm.stream.exploration import Exploration, explore
from polyrhythm.stream.expr import Expr, symbol
from polyrhythm.stream.functions import FUNCTIONS, REDUCTIONS, Function, Reduction
from polyrhythm.stream.graph import Program, Stream
from polyrhythm.stream.hardware import Costs, Hardware
from polyrhythm.stream.lowering import Lowered, lower
from polyrhythm.stream.metrics import Metrics, measure
from polyrhythm.stream.operators.higher import accum, flat_map, map_tiles, scan
from polyrhythm.stream.operators.offchip import OffChip, linear_load, linear_store, random_load, random_store
from polyrhythm.stream.operators.onchip import bufferize, streamify, streamify_by
from polyrhythm.stream.operators.routing import eager_merge, parallelize_stream, partition, reassemble
from polyrhythm.stream.operators.shapes import expand, flatten, promote, repeat, reshape, zip_streams
from polyrhythm.stream.operators.structure import feedback, replicate, restate, source, stack, unstack
from polyrhythm.stream.operators.window import window
from polyrhythm.stream.pictures import program_svg, report, roofline_svg, timeline_svg, write_chrome_trace
from polyrhythm.stream.simulate import Run, simulate
from polyrhythm.stream.tokens import EMPTY
from polyrhythm.stream.types import BF16, BOOL, F16, F32, F64, U32, U64, Buffer, DynTile, Selector, Tile, Tuple

__all__ = [
    "BF16",
    "BOOL",
    "EMPTY",
    "F16",
    "F32",
    "F64",
    "FUNCTIONS",
    "REDUCTIONS",
    "U32",
    "U64",
    "AccessNotStreamable",
    "Bottleneck",
    "Buffer",
    "CapacityExceeded",
    "Costs",
    "DataMismatch",
    "Deadlock",
    "Dim",
    "DirectiveMismatch",
    "DynTile",
    "ElementMismatch",
    "Exploration",
    "Expr",
    "FifoDepths",
    "Function",
    "Hardware",
    "Lowered",
    "Metrics",
    "OffChip",
    "OpenFeedback",
    "OperationNotStreamable",
    "Program",
    "RankOutOfRange",
    "Reduction",
    "Run",
    "Selector",
    "ShapeMismatch",
    "StopMismatch",
    "Stream",
    "StreamError",
    "Tile",
    "Tuple",
    "UnboundSymbol",
    "accum",
    "bottleneck",
    "bufferize",
    "dynamic",
    "eager_merge",
    "expand",
    "explore",
    "feedback",
    "flat_map",
    "flatten",
    "linear_load",
    "linear_store",
    "lint",
    "lower",
    "map_tiles",
    "measure",
    "parallelize",
    "parallelize_stream",
    "partition",
    "program_svg",
    "promote",
    "ragged",
    "random_load",
    "random_store",
    "reassemble",
    "repeat",
    "replicate",
    "report",
    "reshape",
    "restate",
    "roofline_svg",
    "scan",
    "simulate",
    "smallest_fifos",
    "source",
    "stack",
    "static",
    "streamify",
    "streamify_by",
    "symbol",
    "tile",
    "time_multiplex",
    "timeline_svg",
    "unstack",
    "utilisation_over_time",
    "window",
    "write_chrome_trace",
    "zip_streams",
]
