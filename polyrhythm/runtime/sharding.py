"""`mesh=` and `shard=`: what the user says of devices, checked before anything is compiled.

A key is a dim, spread over an axis of the mesh or several of them, or the name of an input or parameter, or a pattern
of names, with an entry for each axis of its array as in `jax.sharding.PartitionSpec`. Everything here can be known
without a call: that the axes exist, that fixed lengths divide. Whether the steps of a dim may run on different devices
is decided where all schedule choices are (`compiler/schedule/schedule_refusal.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from polyrhythm.compiler.ir.graph import Graph, Node
from polyrhythm.compiler.loops.sharding import Axes, Sharding, Spec
from polyrhythm.errors import ShardingError, UnsupportedError
from polyrhythm.extras import needs
from polyrhythm.language.chunks import Chunk
from polyrhythm.language.index import Dim

Wishes = Mapping[Any, Any]

PRECISIONS = ("float32", "tensorfloat32", "bfloat16", "default")
"""Of products of float32 on accelerators; the last is as JAX chooses."""


def check_mesh(mesh: Any, shard: Wishes, backend: str) -> None:
    """Refuse what no mesh can be, and what only a mesh can."""
    if mesh is None:
        if shard:
            raise ShardingError("shard= names axes, but there is no mesh", fix="give mesh=, made by jax.make_mesh")
        return
    if backend != "jax":
        raise ShardingError(f"the {backend} backend runs on one device", fix='use backend="jax", or leave out mesh=')
    if not isinstance(getattr(mesh, "shape", None), Mapping) or not hasattr(mesh, "devices"):
        raise ShardingError(f"{mesh!r} is no mesh of devices", fix='make one: jax.make_mesh((8,), ("data",))')


def check_precision(precision: str) -> None:
    """Refuse a precision that products cannot have."""
    if precision not in PRECISIONS:
        raise UnsupportedError(f"there is no precision {precision!r}", fix=f"use one of {', '.join(PRECISIONS)}")


def check_device(device: Any, mesh: Any, backend: str) -> None:
    """Refuse a device that the backend does not have."""
    if device is None:
        return
    if mesh is not None:
        raise ShardingError("device= and mesh= cannot both be", fix="leave out one of them")
    if backend == "torch":
        needs("torch", "torch", 'backend="torch"')
        from polyrhythm.compiler.backends.torch.backend import check_device

        wrong = check_device(device)
        if wrong is not None:
            raise ShardingError(f"device={device!r} is no device of torch here: {wrong}", fix='use "cpu"')
    elif backend != "jax" or not hasattr(device, "platform"):
        raise ShardingError(
            f"device={device!r} is no device of the {backend} backend",
            fix='use backend="jax" and one of jax.devices(), or backend="torch" and one of torch\'s, as "cuda"',
        )


def mesh_of(device: Any) -> Any:
    """One device of JAX as a mesh."""
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array([device]), ("device",))


def spread_dims(mesh: Any, shard: Wishes, chosen: Mapping[Dim, Chunk]) -> dict[Dim, Chunk]:
    """The dims that are spread, as what the schedule makes of them."""
    found: dict[Dim, Chunk] = {}
    for key, wish in shard.items():
        if not isinstance(key, Dim):
            continue
        axes = axes_of(mesh, wish, f"shard={{{key}: {wish!r}}}")
        if not axes:
            continue
        if chosen.get(key, Chunk(None)) != Chunk(None):
            raise ShardingError(
                f"schedule={{{key}: {chosen[key]}}} and shard={{{key}: {wish!r}}} cannot both be: steps on different "
                "devices run at once",
                fix=f"leave {key} out of one of them",
            )
        found[key] = Chunk(None, axes)
    return found


def sharding_of(mesh: Any, shard: Wishes, graph: Graph) -> Sharding:
    """What the program is told of the mesh and of its inputs."""
    from polyrhythm.compiler.backends.jax.run.placing import auto_mesh

    found: dict[str, Spec] = {}
    for key, wish in shard.items():
        if isinstance(key, Dim):
            _check_divides(mesh, key, wish, graph)
        elif isinstance(key, str):
            names = [name for name in graph.inputs if name == key or fnmatchcase(name, key)]
            if not names:
                known = ", ".join(map(repr, graph.inputs))
                raise ShardingError(f"no input is named {key!r}", fix=f"name one of {known}, or a dim")
            found |= {name: _spec(mesh, name, wish, graph.inputs[name]) for name in names}
        else:
            raise ShardingError(f"shard={{{key!r}: ...}} names nothing", fix="name a dim, or an input by its name")
    _check_axes(mesh, graph)
    return Sharding(auto_mesh(mesh), found)


def _check_axes(mesh: Any, graph: Graph) -> None:
    """Refuse axes inside the program that the mesh does not have, or that do not divide; and host functions."""
    for node in graph:
        for definition in node.definitions:
            if definition.op == "host":
                raise ShardingError(
                    "a program with host functions cannot be on a mesh: they are called in one process",
                    fix="keep host functions out of it, and call them around it",
                    at=definition.at or node.at,
                )
            if definition.op == "shard":
                told = f"pr.shard(x, {definition.attributes['axis']}, {definition.attributes['over'][0]!r})"
                ways = Sharding(mesh).ways(axes_of(mesh, definition.attributes["over"], told))
                length = node.shape[definition.attributes["axis"]]
                if length.is_constant and length.constant % ways:
                    raise ShardingError(
                        f"{told}: the axis has length {length}, which does not divide into {ways} equal parts",
                        fix="choose another axis, or another mesh",
                        at=definition.at or node.at,
                    )


def axes_of(mesh: Any, wish: Any, told: str) -> Axes:
    """Axes of a mesh as a user names them: one, several, or None."""
    known = ", ".join(map(repr, mesh.shape))
    if wish is not None and not isinstance(wish, Iterable):
        raise ShardingError(f"{told}: {wish!r} is no axis of a mesh", fix=f"name one of {known}")
    axes = () if wish is None else (wish,) if isinstance(wish, str) else tuple(wish)
    for axis in axes:
        if axis not in mesh.shape:
            raise ShardingError(f"{told}: the mesh has no axis {axis!r}", fix=f"name one of {known}")
    return axes


def _check_divides(mesh: Any, dim: Dim, wish: Any, graph: Graph) -> None:
    """Refuse a dim of a fixed length that does not divide into as many parts; others are rounded up."""
    axes = axes_of(mesh, wish, f"shard={{{dim}: {wish!r}}}")
    ways = Sharding(mesh).ways(axes)
    for node in graph:
        for own in node.dims:
            if own.symbol is graph.declared.get(dim.symbol) and own.extent.is_constant and own.extent.constant % ways:
                raise ShardingError(
                    f"shard={{{dim}: {wish!r}}}: {own.extent} steps do not divide into {ways} equal parts",
                    fix=f"fix the bound to a multiple of {ways}, or give it at the call",
                    at=node.at,
                )


def _spec(mesh: Any, name: str, wish: Any, node: Node) -> Spec:
    """What a user says of the array of an input, an entry for each of its axes; the last ones may be left out."""
    told = f"shard={{{name!r}: {wish!r}}}"
    if isinstance(wish, str) or not isinstance(wish, Iterable):
        raise ShardingError(f"{told} does not say which axis", fix="write an entry for each axis: (None, 'model')")
    lengths = [*(dim.extent for dim in node.dims), *node.shape]
    entries = tuple(wish)
    if len(entries) > len(lengths):
        raise ShardingError(
            f"{told} has {len(entries)} entries, but the array of {name!r} has {len(lengths)} axes",
            fix="write an entry for each axis, dims first",
            at=node.at,
        )
    spec = tuple(axes_of(mesh, entry, told) for entry in entries) + ((),) * (len(lengths) - len(entries))
    used = [axis for axes in spec for axis in axes]
    if len({*used}) < len(used):
        raise ShardingError(f"{told} uses an axis of the mesh twice", fix="spread one axis over it")
    for axes, dim in zip(spec, node.dims, strict=False):
        if axes:
            raise ShardingError(
                f"{told} spreads the dim {dim.symbol} of one input only",
                fix=f"spread the dim in the whole program: shard={{{dim.symbol}: ...}}",
                at=node.at,
            )
    for number, (axes, length) in enumerate(zip(spec, lengths, strict=True)):
        ways = Sharding(mesh).ways(axes)
        if length.is_constant and length.constant % ways:
            raise ShardingError(
                f"{told}: axis {number} has length {length}, which does not divide into {ways} equal parts",
                fix="choose another axis, or another mesh",
                at=node.at,
            )
    return spec
