"""`x.at[...]`: values with some elements replaced, in JAX's spelling: `x.at[i].set(v)`, `.add`, `.max`, `.min`.

What stands in the brackets is what `x.axes[...]` takes, and several integer tensors besides, which broadcast against
each other as in NumPy. Nothing is changed in place: the result is another tensor (in a recurrence the compiler updates
the buffer). What lies outside is not written; of several updates for one place the last counts for `set`, all for the
others.

Tensors among the entries become one: their axes are moved to the front and flattened, and one scatter along that axis
writes. The other entries cut a part out of the value, and the part is put back by a mask, or by a scatter of one row.
"""

from __future__ import annotations

from typing import Any

from polyrhythm.compiler.ir.dtypes import INT32
from polyrhythm.compiler.ir.ops.checks import broadcast_shapes
from polyrhythm.compiler.ir.terms import ONE, ZERO, Term, product
from polyrhythm.errors import IndexingError
from polyrhythm.language.functions.arithmetic import maximum, minimum, where
from polyrhythm.language.functions.indexing import scatter_add
from polyrhythm.language.functions.shapes import broadcast_to, transpose
from polyrhythm.language.functions.spatial import Cut, cut_out, entry_cut, filled, is_data, known, positions_of
from polyrhythm.language.functions.support import TensorLike, as_tensor, cast_to, reshaped
from polyrhythm.language.index import index_of
from polyrhythm.language.naming import names_result
from polyrhythm.language.tensor import Tensor, apply, domain


class At:
    """The elements of a value, to be replaced: `x.at[i].set(v)`.

    >>> import polyrhythm as pr
    >>> x = pr.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> pr.evaluate(x.at[0, 1].set(9.0))
    array([[1., 9.],
           [3., 4.]], dtype=float32)
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __getitem__(self, key: Any) -> Places:
        return Places(self.tensor, key if isinstance(key, tuple) else (key,))


class Places:
    """Some elements of a tensor's value, and what can be done with them. Values broadcast to their shape.

    >>> import polyrhythm as pr
    >>> x, i = pr.zeros((3,)), pr.constant([0, 2, 0])
    >>> pr.evaluate(x.at[i].add(pr.constant([1.0, 2.0, 4.0])))
    array([5., 0., 2.], dtype=float32)
    """

    __slots__ = ("_apart", "_cuts", "_data", "tensor")

    def __init__(self, tensor: Tensor, key: tuple[Any, ...]) -> None:
        entries = filled(tensor, key)
        given = known(tensor, [entry for _, entry in entries])
        self.tensor = tensor
        self._cuts: list[Cut] = []
        self._data: dict[int, Tensor] = {}
        places = []
        for place, entry in entries:
            if entry is None:
                raise IndexingError("x.at[...] takes no None", fix="give the updates another axis instead")
            length = tensor.type.shape[len(self._cuts)]
            if is_data(entry):
                self._data[len(self._cuts)] = positions_of(entry, length)
                places.append(place)
                self._cuts.append(Cut(ZERO, length, 1))
            else:
                self._cuts.append(entry_cut(entry, length, tensor, given))
                places += [place] if self._cuts[-1].dropped else []
        self._apart = bool(places) and places[-1] - places[0] >= len(places)

    @names_result
    def set(self, values: TensorLike) -> Tensor:
        """The value with these elements replaced.

        >>> import polyrhythm as pr
        >>> pr.evaluate(pr.zeros((4,)).at[1:3].set(pr.constant([5.0, 6.0])))
        array([0., 5., 6., 0.], dtype=float32)
        """
        return self._updated("set", values)

    @names_result
    def add(self, values: TensorLike) -> Tensor:
        """The value with updates added to these elements.

        >>> import polyrhythm as pr
        >>> pr.evaluate(pr.ones((3,)).at[-1].add(2.0))
        array([1., 1., 3.], dtype=float32)
        """
        return self._updated("add", values)

    @names_result
    def max(self, values: TensorLike) -> Tensor:
        """The value with these elements at least as great as the updates.

        >>> import polyrhythm as pr
        >>> pr.evaluate(pr.ones((3,)).at[pr.constant([1, 1])].max(pr.constant([5.0, 4.0])))
        array([1., 5., 1.], dtype=float32)
        """
        return self._updated("max", values)

    @names_result
    def min(self, values: TensorLike) -> Tensor:
        """The value with these elements at most as great as the updates.

        >>> import polyrhythm as pr
        >>> pr.evaluate(pr.ones((3,)).at[0].min(-1.0))
        array([-1.,  1.,  1.], dtype=float32)
        """
        return self._updated("min", values)

    def _updated(self, mode: str, values: TensorLike) -> Tensor:
        x, updates = self.tensor, cast_to(values, self.tensor.dtype)
        index_shape = self._index_shape(updates)
        rest = [axis for axis, cut in enumerate(self._cuts) if axis not in self._data and not cut.dropped]
        # Where the axes of the tensors stand among the others, as NumPy puts them.
        first = 0 if self._apart or not self._data else sum(axis < min(self._data) for axis in rest)
        lengths = [self._cuts[axis].length for axis in rest]
        shape = (*lengths[:first], *index_shape, *lengths[first:])
        updates = broadcast_to(updates, [index_of(n) for n in shape])
        moved = range(first, first + len(index_shape))
        updates = transpose(updates, (*moved, *(i for i in range(len(shape)) if i not in moved)))
        if not self._data:
            return self._put(mode, updates)
        part = self._scattered(mode, cut_out(x, self._cuts), rest, index_shape, updates)
        return self._put_back(x, part, 0)

    def _index_shape(self, updates: Tensor) -> tuple[Term, ...]:
        given = domain((*self.tensor.spans, *updates.spans))
        shapes = [index.type.shape for index in self._data.values()]
        return broadcast_shapes("x.at[...]", shapes, given) if shapes else ()

    def _scattered(
        self, mode: str, part: Tensor, rest: list[int], index_shape: tuple[Term, ...], updates: Tensor
    ) -> Tensor:
        """What was cut out with the updates in it, of which the axes of the tensors come first."""
        axes, shape = list(self._data), part.type.shape
        order = [*axes, *rest, *(i for i in range(part.rank) if i not in axes and i not in rest)]
        sizes = [shape[axis] for axis in axes]
        flat = reshaped(transpose(part, order), (product(sizes), *(shape[axis] for axis in rest)))
        places = self._flat_places(sizes, index_shape)
        if mode == "add":
            found = scatter_add(flat, places, updates, 0)
        else:
            found = apply("scatter", flat, places, updates, axis=0, mode=mode, unique=not index_shape)
        turned = reshaped(found, tuple(shape[axis] for axis in order))
        return transpose(turned, [order.index(axis) for axis in range(part.rank)])

    def _flat_places(self, sizes: list[Term], index_shape: tuple[Term, ...]) -> Tensor:
        """The positions along the flattened axis; outside of it where one entry is outside of its own."""
        total: Tensor | None = None
        outside: Tensor | None = None
        for index, size in zip(self._data.values(), sizes, strict=True):
            if len(self._data) == 1:
                return index
            length = cast_to(index_of(size), INT32)
            here = (index < 0) | (index >= cast_to(length, index.dtype))
            place = cast_to(index, INT32)
            total = place if total is None else total * length + place
            outside = here if outside is None else outside | here
        assert total is not None
        assert outside is not None
        return broadcast_to(where(outside, -1, total), [index_of(n) for n in index_shape])

    def _put(self, mode: str, updates: Tensor) -> Tensor:
        """Updates without tensors among the entries: in the shape of what is cut out."""
        x = self.tensor
        part = reshaped(updates, tuple(cut.length for cut in self._cuts))
        if mode != "set":
            now = cut_out(x, self._cuts)
            part = now + part if mode == "add" else maximum(now, part) if mode == "max" else minimum(now, part)
        return self._put_back(x, part, 0)

    def _put_back(self, x: Tensor, part: Tensor, axis: int) -> Tensor:
        """x with a part of it replaced, which is cut along this axis and later ones."""
        while axis < x.rank and self._is_whole(axis, x):
            axis += 1
        if axis == x.rank:
            return part
        cut = self._cuts[axis]
        rows = [Cut(ZERO, n, 1) for n in x.type.shape]
        rows[axis] = cut
        inner = part if axis == x.rank - 1 else self._put_back(cut_out(x, rows), part, axis + 1)
        if cut.dropped:
            row = reshaped(inner, (*x.type.shape[:axis], *x.type.shape[axis + 1 :]))
            return apply("scatter", x, as_tensor(index_of(cut.start)), row, axis=axis, mode="set", unique=True)
        steps = apply("iota", length=cut.length)
        places = steps * cut.step + cast_to(index_of(cut.start), INT32)
        if cut.step != 1:
            return apply("scatter", x, places, inner, axis=axis, mode="set", unique=True)
        none = [ZERO] * x.rank
        before, after = list(none), list(none)
        before[axis], after[axis] = cut.start, x.type.shape[axis] - cut.start - cut.length
        padded = apply("pad", inner, before=tuple(before), after=tuple(after), value=0)
        place = apply("iota", length=x.type.shape[axis])
        start = cast_to(index_of(cut.start), INT32)
        inside = (place >= start) & (place < start + cast_to(index_of(cut.length), INT32))
        column = tuple(x.type.shape[axis] if i == axis else ONE for i in range(axis, x.rank))
        return where(reshaped(inside, column), padded, x)

    def _is_whole(self, axis: int, x: Tensor) -> bool:
        cut = self._cuts[axis]
        return cut.start is ZERO and cut.length is self.tensor.type.shape[axis] and cut.step == 1 and not cut.dropped
