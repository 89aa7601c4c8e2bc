"""Operations as a user of the library writes them: `a + b`, `x.tanh()`, `a @ b`, a number where a number will do.

The functions of the op table take every dtype and every shape, and ask which it is at each call; a loop of small
operations spends most of its time there. Here the types decide once, when the source is written. What this file does
not know, or where the library has another result than the op table, is left to those functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyrhythm.compiler.ir import dtypes
from polyrhythm.compiler.ir.ops.contraction import parse_spec
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term
from polyrhythm.compiler.ir.types import TensorType
from polyrhythm.compiler.loops.ir import Block, Compute, Local, Operand, Place

FLOATS = (dtypes.FLOAT32, dtypes.FLOAT64)
NUMBERS = (*FLOATS, dtypes.INT32, dtypes.INT64)

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<="}
"""Operators that both libraries compute as the op table does; `div` of floats only."""

LOGIC = {"and": "&", "or": "|", "xor": "^"}

ARITHMETIC = ("add", "sub", "mul", "div")

Types = Sequence[TensorType]
Texts = Sequence[str]


@dataclass(frozen=True)
class Words:
    """How a library spells operations: templates of functions of floats, and functions of the texts of operands.

    `literals` are the operations that take a Python number as their first operand, `given` the objects that the texts
    mention. Extremes may be of axes that are `empty`.
    """

    functions: Mapping[str, str]
    casts: Callable[[str, str], str]
    joined: str
    transposed: str
    expanded: Callable[[str, int], str]
    squeezed: Callable[[str, int], str]
    narrowed: Callable[[str, Sequence[tuple[int, int, int] | None]], str]
    literals: frozenset[str]
    extremes: Mapping[str, str]
    given: Mapping[str, Any] = field(default_factory=dict)
    sigmoid: str = ""
    softmax: str = ""
    empty: bool = False


def written(words: Words, compute: Compute, types: Types, texts: Texts, term: Callable[[Term], str]) -> str | None:
    """An operation applied to texts, or None where only the function of the op table will do."""
    op, result = compute.op, compute.type
    if compute.rows is not None:
        return None
    if op == "copy":
        return texts[0]
    if op in INFIX and types[0].dtype in (FLOATS if op == "div" else NUMBERS):
        return f"({texts[0]} {INFIX[op]} {texts[1]})"
    if op in LOGIC and types[0].dtype == dtypes.BOOL:
        return f"({texts[0]} {LOGIC[op]} {texts[1]})"
    if op == "cast" and types[0].dtype in (*NUMBERS, dtypes.BOOL) and result.dtype in FLOATS:
        return words.casts(texts[0], result.dtype.name)
    if op in words.functions and types[-1].dtype in FLOATS and result.dtype in (*FLOATS, dtypes.BOOL):
        return words.functions[op].format(*texts)
    if op == "reshape":
        return f"{texts[0]}.reshape(({''.join(f'{term(n)}, ' for n in result.shape)}))"
    if op == "transpose":
        return f"{texts[0]}.{words.transposed}({compute.attributes['axes']})"
    if op == "slice":
        return _sliced(words, compute, types[0], texts[0])
    if op == "reduce" and types[0].dtype in FLOATS and compute.attributes["axes"]:
        return _reduced(words, compute, types[0], texts[0])
    if op == "einsum" and len(texts) == 2 and types[0].dtype in FLOATS:
        return _product(words, compute.attributes["spec"], texts)
    return None


def _sliced(words: Words, compute: Compute, x: TensorType, text: str) -> str | None:
    """A slice at places that are numbers, or of whole axes."""
    starts, lengths, steps = (compute.attributes[name] for name in ("starts", "lengths", "steps"))
    parts: list[tuple[int, int, int] | None] = []
    for start, length, step, whole in zip(starts, lengths, steps, x.shape, strict=True):
        if step == 1 and start is ZERO and length is whole:
            parts.append(None)
        elif step > 0 and start.is_constant and length.is_constant and whole.is_constant and length.constant > 0:
            parts.append((start.constant, length.constant, step))
        else:
            return None
    return words.narrowed(text, parts)


def _reduced(words: Words, compute: Compute, x: TensorType, text: str) -> str | None:
    """A sum, or an extreme of axes that are known not to be empty."""
    monoid, axes = compute.attributes["monoid"], compute.attributes["axes"]
    if monoid == "sum":
        return f"{text}.sum({axes})"
    lengths = [x.shape[axis] for axis in axes]
    filled = words.empty or all(length.is_constant and length.constant > 0 for length in lengths)
    return f"{text}.{words.extremes[monoid].format(axes)}" if monoid in words.extremes and filled else None


def _product(words: Words, spec: str, texts: Texts) -> str | None:
    """A contraction as a product of matrices.

    >>> _product(numpy_words(), "ij,jk->ik", "ab"), _product(numpy_words(), "hd,shd->hs", "ab")
    ('(a @ b)', '(a[:, None] @ b.transpose((1, 2, 0)))[:, 0]')
    """
    (left, right), out = parse_spec(spec)
    if any(len(set(word)) < len(word) for word in (left, right)):
        return None
    batch = [label for label in out if label in left and label in right]
    over = [label for label in left if label in right and label not in out]
    rows, columns = ([n for n in out if n in own and n not in other] for own, other in ((left, right), (right, left)))
    if rows and columns and out.index(columns[0]) < out.index(rows[0]):  # so that the result lies as it is read
        (left, right), texts, rows, columns = (right, left), texts[::-1], columns, rows
    if not over or {*batch, *over, *rows, *columns} != {*left, *right}:
        return None
    a = _ordered(words, texts[0], left, [*batch, *rows, *over])
    b = _ordered(words, texts[1], right, [*batch, *over, *columns])
    if max(len(over), len(rows), len(columns)) > 1:
        product = f"contracted({a}, {b}, {len(batch)}, {len(over)})"
        return _ordered(words, product, "".join([*batch, *rows, *columns]), list(out))
    added = [axis for axis, missing in ((-1, not columns), (-2, not rows)) if missing and batch]
    if -2 in added:
        a = words.expanded(a, len(batch))
    if -1 in added:
        b = words.expanded(b, len(batch) + 1)
    product = f"({a} @ {b})"
    for axis in added:
        product = words.squeezed(product, len(batch) + (axis == -1 and bool(rows or -2 in added)))
    return _ordered(words, product, "".join([*batch, *rows, *columns]), list(out))


def contracted(a: Any, b: Any, batch: int, over: int) -> Any:
    """A product of arrays by (batch, rows, over) and (batch, over, columns), of several axes each."""
    rows, inner, columns = a.shape[batch : a.ndim - over], b.shape[batch : batch + over], b.shape[batch + over :]
    first, middle = a.shape[:batch], math.prod(inner)
    left = a.reshape((*first, math.prod(rows), middle))
    return (left @ b.reshape((*first, middle, math.prod(columns)))).reshape((*first, *rows, *columns))


def _ordered(words: Words, text: str, labels: str, wanted: Sequence[str]) -> str:
    axes = tuple(labels.index(label) for label in wanted)
    return text if axes == tuple(range(len(axes))) else f"{text}.{words.transposed}({axes})"


def _indexed(text: str, parts: Sequence[Any]) -> str:
    """An index as NumPy has it; None is a whole axis."""
    shown = [":" if p is None else f"{p[0]}:{p[0] + (p[1] - 1) * p[2] + 1}" + f":{p[2]}" * (p[2] > 1) for p in parts]
    return f"{text}[{', '.join(shown)}]" if any(part is not None for part in parts) else text


def numpy_words() -> Words:
    """Those of NumPy."""
    import numpy as np

    functions = {
        **{
            n: f"np.{n}({{0}})" for n in ("exp", "log", "log1p", "expm1", "tanh", "sqrt", "sin", "cos", "floor", "ceil")
        },
        **{name: f"np.{name}({{0}}, {{1}})" for name in ("maximum", "minimum")},
        "neg": "(-{0})",
        "abs": "np.abs({0})",
        "isfinite": "np.isfinite({0})",
        "select": "np.where({0}, {1}, {2})",
    }
    return Words(
        functions,
        lambda text, name: f"{text}.astype(np.{name})",
        "np.concatenate",
        "transpose",
        lambda text, axis: f"{text}[{':, ' * axis}None]",
        lambda text, axis: f"{text}[{':, ' * axis}0]",
        _indexed,
        frozenset(("add", "sub", "mul", "div")),
        {"max": "max({0}, initial=-np.inf)", "min": "min({0}, initial=np.inf)"},
        {"np": np, "contracted": contracted},
        empty=True,
    )


def torch_words() -> Words:
    """Those of torch, which divides a number by a tensor in two steps."""
    import torch

    def softmax(x: torch.Tensor, axis: int) -> torch.Tensor:
        """That of torch, but of infinite numbers, of which it makes NaN everywhere."""
        if x.is_cpu and not (found := x.softmax(axis)).isnan().any():
            return found
        largest = x.amax(axis, keepdim=True)
        exp = (x - torch.where(largest.isfinite(), largest, 0.0)).exp()
        return exp / exp.sum(axis, keepdim=True)

    names = ("exp", "log", "log1p", "expm1", "tanh", "sqrt", "sin", "cos", "floor", "ceil", "neg", "abs", "erf")

    def narrowed(text: str, parts: Sequence[tuple[int, int, int] | None]) -> str:
        if any(part is not None and part[2] > 1 for part in parts):
            return _indexed(text, parts)
        return text + "".join(f".narrow({axis}, {p[0]}, {p[1]})" for axis, p in enumerate(parts) if p is not None)

    functions = {
        **{name: f"{{0}}.{name}()" for name in names},
        **{name: f"torch.{name}({{0}}, {{1}})" for name in ("maximum", "minimum")},
        "isfinite": "torch.isfinite({0})",
        "select": "torch.where({0}, {1}, {2})",
    }
    return Words(
        functions,
        lambda text, name: f"{text}.to(torch.{name})",
        "torch.cat",
        "permute",
        lambda text, axis: f"{text}.unsqueeze({axis})",
        lambda text, axis: f"{text}.squeeze({axis})",
        narrowed,
        frozenset(("add", "sub", "mul")),
        {"max": "amax({0})", "min": "amin({0})"},
        {"torch": torch, "softmax": softmax, "contracted": contracted},
        sigmoid="{0}.sigmoid()",
        softmax="softmax({0}, {1})",
    )


@dataclass
class Spelled:
    """How the operations of a block are written.

    `numbers` are constants that all their readers take as Python numbers, `whole` results of several operations that
    are one of the library, with its template and its operands. What is `gone` is part of such a one. What is `reused`
    is written over an operand, the one with this number, that nothing else reads.
    """

    numbers: dict[str, str] = field(default_factory=dict)
    whole: dict[str, tuple[str, tuple[Operand, ...]]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    reused: dict[str, int] = field(default_factory=dict)


@dataclass
class Inside:
    """A block as patterns are looked for in it: what makes each value and what reads it."""

    made: dict[str, Compute]
    readers: dict[str, list[Compute]]
    stored: set[str]

    @classmethod
    def of(cls, block: Block) -> Inside:
        """Look at a block."""
        readers: dict[str, list[Compute]] = {compute.result: [] for compute in block.body}
        for compute in block.body:
            for name in {*compute.locals}:
                readers[name].append(compute)
        return cls({compute.result: compute for compute in block.body}, readers, {s.value for s in block.stores})

    def maker(self, operand: Operand, op: str) -> Compute | None:
        """The operation that makes an operand, if it is this one."""
        made = self.made[operand.name] if isinstance(operand, Local) else None
        return made if made is not None and made.op == op else None

    def number(self, operand: Operand) -> float | None:
        """The number that an operand is, if it is one."""
        made = self.maker(operand, "constant")
        if made is None or made.type.rank or made.type.dtype not in NUMBERS:
            return None
        value: float = made.attributes["value"].value.item()
        return value

    def rank(self, operand: Operand) -> int:
        """How many axes an operand has."""
        return (self.made[operand.name] if isinstance(operand, Local) else operand).type.rank

    def only_for(self, parts: Sequence[Compute], last: Compute) -> bool:
        """Whether nothing but each other and the last reads some values."""
        known = {part.result for part in (*parts, last)}
        read = {reader.result for part in parts for reader in self.readers[part.result]}
        return read <= known and not any(part.result in self.stored for part in parts)


def spelled(words: Words, block: Block) -> Spelled:
    """Look at a block before its source is written."""
    inside, found = Inside.of(block), Spelled()
    for compute in reversed(block.body):
        for template, pattern in ((words.sigmoid, _sigmoid), (words.softmax, _softmax)):
            if template and (match := pattern(compute, inside)) is not None:
                operand, axis, parts = match
                if compute.type.dtype in FLOATS and compute.type.rank and inside.only_for(parts, compute):
                    found.whole[compute.result] = template.replace("{1}", str(axis)), (operand,)
                    found.gone |= {part.result for part in parts}
        if compute.result not in found.gone and (joined := _joined(compute, inside)) is not None:
            operands, axis, parts = joined
            if inside.only_for(parts, compute):
                texts = ", ".join(f"{{{n}}}" for n in range(len(operands)))
                found.whole[compute.result] = f"{words.joined}(({texts}), {axis})", tuple(operands)
                found.gone |= {part.result for part in parts}
    for name in inside.made:
        number = inside.number(Local(name))
        if number is None or name in inside.stored or number in (math.inf, -math.inf) or number != number:
            continue
        readers = [one for one in inside.readers[name] if one.result not in found.gone | found.whole.keys()]
        if all(_takes_number(words, one, name, inside) for one in readers):
            found.numbers[name] = f"({number!r})" if repr(number).startswith("-") else repr(number)
    for compute in block.body:
        if compute.op in ARITHMETIC and compute.result not in found.whole and compute.result not in found.gone:
            places = [n for n, operand in enumerate(compute.operands) if _is_free(operand, compute, inside)]
            if places and (places[0] == 0 or compute.op in ("add", "mul")):
                found.reused[compute.result] = places[0]
    return found


def _is_free(operand: Operand, compute: Compute, inside: Inside) -> bool:
    """Whether an operation may write its result over an operand: new in this block, as large, and read by it alone."""
    if not isinstance(operand, Local) or operand.name in inside.stored or inside.number(operand) is not None:
        return False
    made = inside.made[operand.name]
    new = made.op in ARITHMETIC or (made.op == "einsum" and len(made.operands) == 2)
    alone = inside.readers[operand.name] == [compute] and compute.operands.count(operand) == 1
    return new and alone and made.type == compute.type and made.type.rank > 0 and made.type.dtype in FLOATS


def is_fresh(at: Callable[[str], Place], compute: Compute, made: Mapping[str, Compute]) -> bool:
    """Whether a value lies in memory of its own, so that a variable may keep it: new, or that of another variable."""
    if compute.op in ("copy", "reshape", "transpose"):
        (operand,) = compute.operands
        if isinstance(operand, Local):
            return is_fresh(at, made[operand.name], made)
        return at(operand.place).kind == "variable"
    if compute.op == "einsum":
        return len(compute.operands) == 2 and compute.type.rank > 0
    return compute.type.rank > 0 and (compute.op in INFIX or compute.op in ("tanh", "exp", "select"))


def _takes_number(words: Words, compute: Compute, name: str, inside: Inside) -> bool:
    """Whether an operation can take a Python number in the place of a constant."""
    if compute.op not in INFIX or compute.type.dtype not in (*NUMBERS, dtypes.BOOL):
        return False
    first, second = compute.operands
    other = second if first == Local(name) else first
    return inside.number(other) is None and (other is first or compute.op in words.literals)


Match = tuple[Operand, int, list[Compute]]
"""The operand of what several operations do, the axis along which, and the operations without the last."""


def _sigmoid(last: Compute, inside: Inside) -> Match | None:
    """`0.5 * tanh(0.5 * x) + 0.5`"""
    parts: list[Compute] = []
    now: Compute | None = last
    for op, following in (("add", "mul"), ("mul", "tanh"), ("tanh", "mul"), ("mul", "")):
        if now is None or now.op != op:
            return None
        varying = [operand for operand in now.operands if inside.number(operand) is None]
        halves = [inside.number(operand) for operand in now.operands if inside.number(operand) is not None]
        if len(varying) != 1 or halves != [0.5] * (op != "tanh"):
            return None
        if not following:
            return varying[0], 0, parts
        now = inside.maker(varying[0], following)
        parts += [now] if now is not None else []
    return None


def _joined(last: Compute, inside: Inside) -> tuple[list[Operand], int, list[Compute]] | None:
    """A sum of parts, each with zeros around it, that lie side by side along one axis: the gradient of a split."""
    if last.op != "add" or last.type.dtype not in FLOATS:
        return None
    parts, pads, left = [], [], list(last.operands)
    while left:
        operand = left.pop()
        if (inner := inside.maker(operand, "add")) is not None:
            parts.append(inner)
            left += inner.operands
        elif (pad := inside.maker(operand, "pad")) is not None and pad.attributes["value"] == 0:
            pads.append(pad)
        else:
            return None
    beside = {n for pad in pads for n, ends in enumerate(_ends(pad)) if any(end is not ZERO for end in ends)}
    if len(beside) != 1 or not all(end.is_constant for pad in pads for ends in _ends(pad) for end in ends):
        return None
    (axis,) = beside
    pads.sort(key=lambda pad: int(_ends(pad)[axis][0]))
    reach = 0
    for pad in pads:
        before, after = (int(end) for end in _ends(pad)[axis])
        whole = pad.type.shape[axis]
        if before != reach or not whole.is_constant or pad.type != last.type:
            return None
        reach = int(whole) - after
    return ([pad.operands[0] for pad in pads], axis, parts + pads) if reach == int(last.type.shape[axis]) else None


def _ends(pad: Compute) -> list[tuple[Term, Term]]:
    return [(Term.of(a), Term.of(b)) for a, b in zip(pad.attributes["before"], pad.attributes["after"], strict=True)]


def _softmax(last: Compute, inside: Inside) -> Match | None:
    """`e / e.sum(axis)` where `e = exp(x - shift)`, and the shift is the largest along the axis if that is finite."""
    if last.op != "div" or not (exp := inside.maker(last.operands[0], "exp")):
        return None
    below = _reduction(last.operands[1], "sum", inside)
    if below is None or below[0] != Local(exp.result) or not (sub := inside.maker(exp.operands[0], "sub")):
        return None
    x, axis = sub.operands[0], below[1]
    if not (shift := inside.maker(sub.operands[1], "select")) or inside.number(shift.operands[2]) != 0:
        return None
    finite, above = inside.maker(shift.operands[0], "isfinite"), _reduction(shift.operands[1], "max", inside)
    if finite is None or above is None or finite.operands[0] != shift.operands[1] or above[:2] != (x, axis):
        return None
    return x, axis, [exp, sub, shift, finite, *below[2], *above[2]]


def _reduction(operand: Operand, monoid: str, inside: Inside) -> Match | None:
    """A reduction of one axis, which is kept with length one."""
    kept = inside.maker(operand, "reshape")
    made = inside.maker(kept.operands[0], "reduce") if kept else None
    if kept is None or made is None or made.attributes["monoid"] != monoid or len(made.attributes["axes"]) != 1:
        return None
    (axis,) = made.attributes["axes"]
    shape, source = kept.type.shape, made.operands[0]
    alike = len(shape) == inside.rank(source) and shape[axis] is ONE
    return (source, axis, [kept, made]) if alike else None
