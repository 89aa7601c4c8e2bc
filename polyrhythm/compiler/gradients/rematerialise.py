"""Computing values again for the gradient: copies of definitions, from which gradients read instead.

A copy of a tensor has the same dims and definitions but reads copies in turn, as far as the region of its checkpoint
goes. Where rows are computed again, a read that leaves the row finds a value that was kept: an operation `keep` copies
it, so that of the tensor itself nothing else need live on. A copy that reads nothing but what comes in from outside the
region reads it through `keep` too; otherwise it would equal the original, and whoever looks for equal values would
merge the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyrhythm.compiler.gradients.regions import Region
from polyrhythm.compiler.ir.conditions import TRUE
from polyrhythm.compiler.ir.graph import Access, Definition, Node, NodeDim, operand_type
from polyrhythm.compiler.ir.terms import Term
from polyrhythm.compiler.ir.values import Growing
from polyrhythm.source import Source


class Again:
    """Where gradients read values from: copies for what checkpoints cover, the tensors themselves for the rest."""

    def __init__(self, graph: Growing, regions: Sequence[Region]) -> None:
        self.graph = graph
        self.regions = tuple(regions)
        self._copies: dict[tuple[Region, str], str] = {}
        self._kept: dict[tuple[Access, tuple[NodeDim, ...]], str] = {}

    def read(self, reader: Node, access: Access) -> Access:
        """The access that reads the same value for the derivative of a definition of `reader`."""
        region = self._region(reader.name) or self._region(access.source)
        if region is None:
            return access
        found = self._redirected(region, reader, access)
        self._complete()
        return found

    def _region(self, name: str) -> Region | None:
        return next((region for region in self.regions if name in region.nodes), None)

    def _redirected(self, region: Region, reader: Node, access: Access) -> Access:
        if access.source not in region.nodes:
            return access
        if _same_row(region, reader, access, self.graph.nodes[access.source]):
            return Access(self._copy(region, access.source), access.steps)
        if reader.name in region.nodes and region.over not in access.symbols and not access.ranges:
            return self._keep(reader, access)
        return access

    def _copy(self, region: Region, name: str) -> str:
        key = (region, name)
        if key not in self._copies:
            node = self.graph.nodes[name]
            made = self.graph.add(f"{name}_again", node.dims, node.type, (), node.at, node.recurrent)
            self.graph.nodes[made] = replace(self.graph.nodes[made], domain=node.domain, again=True)
            self._copies[key] = made
        return self._copies[key]

    def _complete(self) -> None:
        """Give every copy its definitions; that may ask for more copies."""
        while True:
            waiting = [(key, made) for key, made in self._copies.items() if not self.graph.nodes[made].definitions]
            if not waiting:
                return
            for (region, name), made in waiting:
                node = self.graph.nodes[name]
                definitions = tuple(self._copied(region, node, definition) for definition in node.definitions)
                self.graph.nodes[made] = replace(self.graph.nodes[made], definitions=definitions)

    def _copied(self, region: Region, node: Node, definition: Definition) -> Definition:
        if any(access.source in region.nodes for access in definition.operands):
            operands = [self._redirected(region, node, access) for access in definition.operands]
        else:
            operands = [
                self._keep(node, access, all_dims=True, at=definition.at) if self._enters(region, access) else access
                for access in definition.operands
            ]
        return replace(definition, operands=tuple(operands))

    def _enters(self, region: Region, access: Access) -> bool:
        """Whether a value that comes in from outside must be told apart: not weights, which no row owns."""
        source = self.graph.nodes[access.source]
        if access.ranges:
            return False
        if region.over is not None:
            return region.over in access.symbols
        return bool(source.dims) or not source.is_input

    def _keep(self, reader: Node, access: Access, all_dims: bool = False, at: Source | None = None) -> Access:
        dims = tuple(dim for dim in reader.dims if all_dims or dim.symbol in access.symbols)
        key = (access, dims)
        if key not in self._kept:
            kind = operand_type(access, self.graph.nodes[access.source])
            made = Definition(TRUE, "keep", (access,), {}, at or reader.at)
            self._kept[key] = self.graph.add(f"{access.source}_kept", dims, kind, [made], made.at)
        return Access(self._kept[key], tuple(Term.of(dim.symbol) for dim in dims))


def _same_row(region: Region, reader: Node, access: Access, source: Node) -> bool:
    """Whether a read stays in the row of the reader: at the same step along all dims but that of the row."""
    if region.over is None:
        return True
    return all(
        symbol is region.over or (step is Term.of(symbol) and symbol in reader.symbols)
        for symbol, step in source.steps(access).items()
    ) and any(symbol is region.over for symbol in source.symbols)
