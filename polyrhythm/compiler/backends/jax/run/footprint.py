"""How many bytes XLA will allocate for a traced program, before it is compiled.

The trace is what all decisions of the backend come to: lanes, chunks, masks, padding, registers, copies. What is left
to XLA is which values become arrays, and which arrays share memory. On a CPU it does this:

- *What is an array.* Operands and results of operations that are not elementwise: products, sorts, sums and extrema of
  floats (library calls), loops, branches. Everything else is fused into what reads it, unless it is expensive (`exp`,
  `tanh`) and read more than once. A mask is elementwise, so it is an array where it feeds a reduction.
- *What shares memory.* A reshape. An elementwise result takes the memory of an operand of its size that is not read
  again. A slice update writes into its operand, if that is not read again. A loop updates what it carries, and begins
  with a copy only of what is read later. Branches share.

`footprint` walks the trace in order, each loop with what its body needs on top, and finds the largest sum. It is an
upper bound on CPU within some percent (`tests/test_memory_plan.py` compares it with XLA's own account); elsewhere it is
an estimate. The cost is linear in the length of the trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyrhythm.compiler.ir.ops.contraction import lies_as_matrices


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HOLES = 1.02
"""What fitting arrays of different sizes into one block of memory adds."""

SMALL = 1024
"""Bytes of a value that a loop carries, below which a copy is not worth looking for."""

BESIDES = 1 << 19
"""Bytes for scalars, tables and what XLA does in another order, which is not worth following."""

VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "optimization_barrier", "copy", "stop_gradient", "copy_p"})
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_vmap_call": "call", "custom_jvp_call": "call_jaxpr"}
CALLS |= {"custom_vjp_call": "call_jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr"}
UPDATES = frozenset({"dynamic_update_slice", "scatter", "scatter-add", "scatter_add", "scatter_mul", "sort"})
PRODUCTS = frozenset({"dot_general", "polyrhythm_product"})
REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
"""Reductions that are library calls for floats: what they reduce has to be an array."""

CHEAP = _names(
    """
    abs add and bitcast_convert_type broadcast_in_dim ceil clamp concatenate convert_element_type
    dynamic_slice eq floor full_like ge gt imag iota is_finite le lt max min mul ne neg not or pad
    population_count real reduce_precision rev round select_and_gather_add select_n shift_left
    shift_right_arithmetic shift_right_logical sign slice split square sub transpose xor stack
    """
)
"""Operations that XLA computes again for everything that reads them."""

EXPENSIVE = _names(
    """
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh digamma div erf erf_inv erfc exp exp2 expm1
    igamma integer_pow gather lgamma log log1p logistic nextafter pow rem rsqrt sin sinh sqrt tan tanh
    """
)
"""Elementwise operations that it computes once, if more than one reads them."""

FUSED_REDUCTIONS = frozenset({"argmax", "argmin", "reduce_and", "reduce_or", "reduce_xor", "reduce_prod", *REDUCTIONS})
"""Reductions that are loops of XLA's own, into which what they reduce is fused."""

LIBRARY_FUSES = frozenset({"mul", "add", "sub", "abs", "neg", "max", "min"})
"""What the library of reductions computes along with them."""


@dataclass(eq=False, repr=False)
class Value:
    """An array value of a trace."""

    bytes: int
    shape: tuple[int, ...]
    floats: bool = False
    step: Step | None = None  # None: a parameter
    mutable: bool = False  # whether it is a parameter that may be written to
    constant: bool = False
    forced: bool = False  # whether it is an array


@dataclass(eq=False, repr=False)
class Step:
    """An operation: how it treats memory, what it reads and makes."""

    kind: str  # "fused", "opaque", "update", "while", "scan", "cond"
    name: str
    operands: list[Value]
    results: list[Value]
    params: Mapping[str, Any] = field(default_factory=dict)
    inner: list[Computation] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # of the operands, which may be seen in another shape
    scope: str = ""  # the computation of the Loop IR that it is part of


@dataclass(eq=False, repr=False)
class Computation:
    """A sequence of operations."""

    params: list[Value]
    steps: list[Step]
    results: list[Value]


MOVES = frozenset({"transpose", "rev", "slice", "dynamic_slice", "pad", "concatenate", "broadcast_in_dim", "gather"})
"""Fused operations that read other positions than the one they make."""

MOST_SHOWN = 12
"""How many of the largest arrays are remembered."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of a compiled program: arguments, results, those in the memory of arguments, the rest; the largest."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    largest: tuple[tuple[int, Step | None], ...] = ()

    @property
    def peak(self) -> int:
        """All of them at the time when most are there."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


def footprint(traced: Any, donated: int = 0) -> Footprint:
    """What XLA will allocate for a closed jaxpr, of which the first parameters are `donated`.

    >>> import jax, jax.numpy as jnp
    >>> x = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
    >>> found = footprint(jax.make_jaxpr(lambda x: (jnp.tanh(x) @ x).sum())(x))
    >>> found.arguments, found.outputs, found.temporaries > 2 * found.arguments
    (4000000, 4, True)
    """
    whole = _computation(traced)
    for number, value in enumerate(whole.params):
        value.mutable = number < donated
    arguments = sum(value.bytes for value in whole.params)
    outputs = sum(value.bytes for value in whole.results)
    made = _Analysis(whole, outermost=True)
    aliased = sum(v.bytes for v in dict.fromkeys(map(made.root, whole.results)) if v in whole.params[:donated])
    return Footprint(arguments, outputs, aliased, math.ceil(made.peak * HOLES) + BESIDES, made.largest)


def _computation(traced: Any) -> Computation:
    """The operations of a closed jaxpr, calls written out."""
    params = [_value(var.aval) for var in traced.jaxpr.invars]
    steps: list[Step] = []
    consts = [_value(var.aval, constant=True) for var in traced.jaxpr.constvars]
    results = _flattened(traced.jaxpr, consts, params, steps, {})
    return Computation(params, steps, results)


def _value(aval: Any, step: Step | None = None, constant: bool = False) -> Value:
    shape = tuple(getattr(aval, "shape", ()))
    dtype = getattr(aval, "dtype", np.dtype("int8"))
    size = getattr(dtype, "itemsize", 4)
    floats = str(dtype) in ("float32", "float64", "bfloat16", "float16")
    return Value(math.prod(shape) * size, shape, floats, step, constant=constant)


def _flattened(
    jaxpr: Any, consts: Sequence[Value], arguments: Sequence[Value], steps: list[Step], same: dict[Any, list[Value]]
) -> list[Value]:
    """Add the operations of a jaxpr to some; its results. What is computed twice is computed once."""
    known: dict[Any, Value] = {}
    known.update(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))

    def value_of(atom: Any) -> Value:
        if hasattr(atom, "val"):
            return _value(atom.aval, constant=True)
        found = known.get(atom)
        return found if found is not None else _value(atom.aval, constant=True)

    for eqn in jaxpr.eqns:
        name, operands = eqn.primitive.name, [value_of(atom) for atom in eqn.invars]
        if name in CALLS and CALLS[name] in eqn.params:
            inner = eqn.params[CALLS[name]]
            closed = hasattr(inner, "consts")
            body = inner.jaxpr if closed else inner
            fixed = [_value(var.aval, constant=True) for var in body.constvars]
            begun = len(steps)
            made = _flattened(body, fixed, operands[len(operands) - len(body.invars) :], steps, same)
            for step in steps[begun:]:
                step.scope = step.scope or str(eqn.source_info.name_stack)
            known.update(zip(eqn.outvars, made, strict=True))
            continue
        if name in VIEWS or _is_view(name, eqn, operands):
            known.update(zip(eqn.outvars, operands, strict=False))
            continue
        key = None
        if name in CHEAP or name in EXPENSIVE:
            read = tuple(
                (str(atom.val), str(atom.aval)) if hasattr(atom, "val") else id(operand)
                for atom, operand in zip(eqn.invars, operands, strict=True)
            )
            key = name, read, str(eqn.params)
        if key is not None and key in same:
            known.update(zip(eqn.outvars, same[key], strict=True))
            continue
        step = _step(eqn, name, operands)
        steps.append(step)
        known.update(zip(eqn.outvars, step.results, strict=True))
        if key is not None:
            same[key] = step.results
    return [value_of(atom) for atom in jaxpr.outvars]


def _is_view(name: str, eqn: Any, operands: Sequence[Value]) -> bool:
    """Whether an operation only looks at its operand in another way."""
    if name == "convert_element_type":
        return bool(eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype)
    if name == "transpose":
        order = [axis for axis in eqn.params["permutation"] if eqn.invars[0].aval.shape[axis] != 1]
        return order == sorted(order)
    if name in ("slice", "dynamic_slice", "pad"):
        return bool(eqn.invars[0].aval.shape == eqn.outvars[0].aval.shape)
    if name == "broadcast_in_dim":
        same_size = operands[0].bytes == _value(eqn.outvars[0].aval).bytes
        return not operands[0].constant and operands[0].shape != () and same_size
    return False


def _step(eqn: Any, name: str, operands: list[Value]) -> Step:
    kind = "fused" if name in CHEAP or name in EXPENSIVE else "opaque"
    kind = "update" if name in UPDATES else name if name in ("while", "scan", "cond") else kind
    step = Step(kind, name, operands, [], eqn.params, scope=str(eqn.source_info.name_stack))
    step.shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in eqn.invars]
    step.results = [_value(var.aval, step) for var in eqn.outvars]
    if kind == "while":
        step.inner = [_computation(eqn.params["body_jaxpr"])]
    elif kind == "scan":
        step.inner = [_computation(eqn.params["jaxpr"])]
    elif kind == "cond":
        step.inner = [_computation(branch) for branch in eqn.params["branches"]]
    return step


class _Analysis:
    """Which values of a computation are arrays, where each lives, and the largest sum of those that live together.

    Sets of operations are the bits of an integer.
    """

    def __init__(
        self, computation: Computation, carried: Mapping[Value, Value] | None = None, outermost: bool = False
    ) -> None:
        self.computation, self.outermost = computation, outermost
        self.carried = carried or {}  # parameters that a loop carries, and the value each has in the next iteration
        self.results = set(computation.results)
        steps = self._wanted()
        self.users: dict[Value, list[Step]] = {}
        for step in steps:
            for operand in step.operands:
                self.users.setdefault(operand, []).append(step)
        self.inner = {step: self._inner(step) for step in steps if step.inner}
        self._force(steps)
        self._connect(steps)
        self.base: dict[Value, Value] = {}
        for step in self.steps:
            self._place(step)
        self.peak, self.largest = self._largest()

    def root(self, value: Value) -> Value:
        """The value in whose memory another is."""
        while value in self.base:
            value = self.base[value]
        return value

    def _wanted(self) -> list[Step]:
        """The operations that results depend on."""
        wanted, kept = set(self.computation.results), []
        for step in reversed(self.computation.steps):
            if any(result in wanted for result in step.results):
                wanted.update(step.operands)
                kept.append(step)
        return kept[::-1]

    def _inner(self, step: Step) -> list[_Analysis]:
        """The same for the body of a loop, or for branches, which may write to what they are given."""
        found = []
        for body in step.inner:
            consts, count = _carry_of(step)
            written = body.params[consts : consts + count]
            for param in written:
                param.mutable = True
            carried = dict(zip(written, body.results, strict=False)) if step.kind != "cond" else {}
            found.append(_Analysis(body, carried))
        return found

    def _force(self, steps: Sequence[Step]) -> None:
        """Find out which values are arrays."""
        for value in self.computation.params:
            value.forced = True
        for step in steps:
            for result in step.results:
                result.forced = step.kind != "fused" or result in self.results
        for step in reversed(steps):
            if step.name in EXPENSIVE and len(self.users.get(step.results[0], ())) > 1:
                step.results[0].forced = True
            for operand in step.operands:
                if operand.step is not None and not operand.forced and self._wants_array(step, operand):
                    operand.forced = True

    def _wants_array(self, step: Step, operand: Value) -> bool:
        """Whether an operation needs an operand to be an array."""
        made = operand.step
        if step.kind == "fused":
            if step.name == "gather":
                # What it takes no more elements of than there are may be computed as it is taken.
                fewer = step.results[0].bytes <= operand.bytes and len(self.users[operand]) == 1
                return operand is step.operands[0] and not fewer
            # What a library fuses it reads from arrays.
            users = self.users.get(step.results[0], ())
            return _is_fused(step) and step.results[0].floats and any(user.name in REDUCTIONS for user in users)
        if step.kind == "update":
            return step.name != "dynamic_update_slice" or operand is step.operands[0]
        if step.name in REDUCTIONS and operand.floats and made is not None:
            alone = len(self.users[operand]) == 1 and all(o.bytes == operand.bytes for o in made.operands)
            return not (alone and made.name in LIBRARY_FUSES)
        if step.name in PRODUCTS and made is not None and made.name == "transpose":
            # A product takes axes in any order, as long as those of the batch come first in memory.
            made.operands[0].forced = True
            return False
        return step.name not in FUSED_REDUCTIONS

    def _connect(self, steps: Sequence[Step]) -> None:
        """Order the operations that make arrays as XLA does, breadth first, and find what each one needs.

        Through fused operations an array is read where what they make becomes one.
        """
        arrays = [step for step in steps if not _is_fused(step)]
        self.bit = {step: 1 << n for n, step in enumerate(arrays)}
        self.readers: dict[Value, int] = {}
        for step in reversed(steps):
            reading = self.readers.get(step.results[0], 0) if _is_fused(step) else self.bit[step]
            for operand in step.operands:
                self.readers[operand] = self.readers.get(operand, 0) | reading
        # What an operation reads directly, and all that comes before it.
        self.needs: dict[Step, int] = {}
        made: dict[Value, int] = {}
        for step in steps:
            direct = before = 0
            for operand in step.operands:
                if operand in made:
                    direct |= made[operand]
            if _is_fused(step):
                made[step.results[0]] = direct
                continue
            for number in _bits(direct):
                before |= self.needs[arrays[number]]
            self.needs[step] = before | direct
            for result in step.results:
                made[result] = self.bit[step]
        waiting: dict[Step, int] = {}
        following: dict[Step, list[Step]] = {}
        for step in arrays:
            direct = 0
            for operand in self._arrays_read(step, everything=True):
                direct |= made.get(operand, 0)
            waiting[step] = direct.bit_count()
            for number in _bits(direct):
                following.setdefault(arrays[number], []).append(step)
        self.steps = [step for step in arrays if not waiting[step]]
        for step in self.steps:
            for later in following.get(step, ()):
                waiting[later] -= 1
                if not waiting[later]:
                    self.steps.append(later)
        self.number = {step: n for n, step in enumerate(self.steps)}
        self._arrays = arrays

    def _arrays_read(self, step: Step, everything: bool = False) -> list[Value]:
        """The arrays that an operation reads, what is fused into it included; unless `everything`, at its position."""
        found: dict[Value, None] = {}
        pending, seen = [step], {step}
        while pending:
            one = pending.pop()
            if one.name in MOVES and not everything:
                continue
            for operand in one.operands:
                if operand.step is None or operand.forced:
                    found[operand] = None
                elif operand.step not in seen:
                    seen.add(operand.step)
                    pending.append(operand.step)
        return list(found)

    def _last(self, value: Value) -> int:
        """The number of the last operation that reads a value; results are read at the end."""
        if value in self.results:
            return len(self.steps)
        numbers = (self.number[self._arrays[bit]] for bit in _bits(self.readers.get(value, 0)))
        return max(numbers, default=-1)

    def _place(self, step: Step) -> None:
        """Let results be in the memory of operands that are not read again."""
        if step.kind == "update":
            for operand, result in zip(step.operands, step.results, strict=False):
                if operand.bytes == result.bytes and self._is_last(operand, step):
                    self.base[result] = operand
        elif step.kind in ("while", "scan"):
            self._place_loop(step)
        elif step.kind == "cond":
            self._place_branches(step)
        elif step.kind == "fused":
            # A transposed array may be the same one, read in another order.
            turned = [operand for operand in step.operands if operand.forced and step.name == "transpose"]
            for operand in turned or self._arrays_read(step):
                ends = _is_own(self.root(operand)) and self._last(operand) <= self.number[step]
                if ends and operand.bytes == step.results[0].bytes and operand not in self.base.values():
                    self.base[step.results[0]] = operand
                    return

    def _is_last(self, value: Value, step: Step) -> bool:
        """Whether an operation may write to the memory of a value: all else that reads it is needed for the operation.

        XLA decides that before it orders operations, so one that happens to run before is not enough.
        """
        if not _is_own(self.root(value)) or value in self.results:
            return False
        return not self.readers.get(value, 0) & ~self.bit[step] & ~self.needs[step]

    def _place_loop(self, step: Step) -> None:
        """Results of a loop are where what it carries was at first, if that is not read again."""
        (inner,) = self.inner[step]
        consts, count = _carry_of(step)
        first = len(step.operands) - count if step.kind == "while" else consts
        taken: set[Value] = set()
        for n in range(count):
            start, body = step.operands[first + n], inner.computation
            if body.results[n] is body.params[consts + n] and not start.constant:
                self.base[step.results[n]] = start
            elif self._is_last(start, step) and self.root(start) not in taken:
                taken.add(self.root(start))
                self.base[step.results[n]] = start

    def _place_branches(self, step: Step) -> None:
        """Results of a branch are where an operand was, if they are in all branches."""
        for n, result in enumerate(step.results):
            sources = set()
            for inner in self.inner[step]:
                params, root = inner.computation.params, inner.root(inner.computation.results[n])
                sources.add(params.index(root) if root in params else -1)
            source = sources.pop()
            if not sources and source >= 0 and self._is_last(step.operands[1 + source], step):
                self.base[result] = step.operands[1 + source]

    def _largest(self) -> tuple[int, tuple[tuple[int, Step | None], ...]]:
        """The largest sum of bytes beside parameters and, outermost, results; and what it is made of."""
        held = {self.root(value) for value in self.computation.params}
        if self.outermost:
            held |= {self.root(value) for value in self.computation.results}
        held |= self._made_in_carried()
        last: dict[Value, int] = {}
        for step in self.steps:
            for result in step.results:
                root = self.root(result)
                last[root] = max(last.get(root, self.number[step]), self._last(result))
        begins: dict[int, list[Value]] = {}
        ends: dict[int, list[Value]] = {}
        for value, end in last.items():
            if value not in held and value.step is not None:
                start = self.number[value.step]
                if value.step.kind == "update" and self.root(value.step.operands[0]) in self.carried:
                    start = 0  # what a loop carries is copied at the beginning of its body
                begins.setdefault(start, []).append(value)
                ends.setdefault(end, []).append(value)
        moved = sum(p.bytes for p, v in self.carried.items() if self.root(v) is not p and self.root(v).step is None)
        now, most, largest = 0, 0, ()  # type: int, int, tuple[tuple[int, Step | None], ...]
        alive: dict[Value, None] = {}
        for number, step in enumerate(self.steps):
            for value in begins.get(number, ()):
                now += value.bytes
                alive[value] = None
            extra, within = self._scratch(step)
            if now + extra > most:
                most, largest = now + extra, (*((value.bytes, value.step) for value in alive), *within)
            for value in ends.get(number, ()):
                now -= value.bytes
                alive.pop(value)
        return most + moved, tuple(sorted(largest, key=lambda entry: -entry[0])[:MOST_SHOWN])

    def _made_in_carried(self) -> set[Value]:
        """New values of what a loop carries that are made where the old ones were."""
        found: set[Value] = set()
        for param, value in self.carried.items():
            root = self.root(value)
            if root is param or root.step is None or root in found:
                continue
            needed = self.needs[root.step] | (self.bit[root.step] if root.step.kind == "fused" else 0)
            if param.bytes < SMALL or not self.readers.get(param, 0) & ~needed:
                found.add(root)
        return found

    def _scratch(self, step: Step) -> tuple[int, tuple[tuple[int, Step | None], ...]]:
        """What an operation needs while it runs, beside operands and results."""
        if step.inner:
            largest = max(self.inner[step], key=lambda one: one.peak)
            return largest.peak, largest.largest
        extra = 0
        if step.name in PRODUCTS:
            extra = _product_copies(step)
        elif step.name.startswith("cum"):
            extra = 2 * step.results[0].bytes
        return extra, ((extra, step),) if extra else ()


def _carry_of(step: Step) -> tuple[int, int]:
    """Where in the parameters of its body is what a loop carries, or all that branches may write to; and how much."""
    if step.kind == "while":
        return step.params["body_nconsts"], len(step.results)
    if step.kind == "scan":
        return step.params["num_consts"], step.params["num_carry"]
    return 0, len(step.operands) - 1


def _is_own(value: Value) -> bool:
    """Whether the memory of a value may be written to."""
    return not value.constant and (value.step is not None or value.mutable)


def _bits(number: int) -> Iterator[int]:
    """The places of the bits of a number that are set."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _product_copies(step: Step) -> int:
    """The operands that have to be transposed first: those whose batch axes are not in front in memory."""
    contracted, batch = step.params.get("dimension_numbers") or step.params["dimensions"]
    copies = 0
    for operand, shape, summed, batched in zip(step.operands[:2], step.shapes[:2], contracted, batch, strict=True):
        order = [axis for axis in _in_memory(operand, shape) if shape[axis] != 1]
        copies += 0 if lies_as_matrices(order, batched, summed) else operand.bytes
    return copies


def _is_fused(step: Step) -> bool:
    """Whether what an operation makes is not an array."""
    return step.kind == "fused" and not step.results[0].forced


def _in_memory(operand: Value, shape: Sequence[int]) -> list[int]:
    """The axes of an operand in the order in which they lie in memory."""
    step = operand.step
    if step is None or operand.forced or step.name != "transpose" or len(step.params["permutation"]) != len(shape):
        return list(range(len(shape)))
    order = step.params["permutation"]
    return sorted(range(len(shape)), key=lambda axis: order[axis])
