"""The Hardware object: every knob of the simulated accelerator, in one place.

Operators hold none of these numbers. Defaults are those of the published evaluation: 32 memory channels of 32
bytes a cycle, 64-byte bursts, one request a cycle and loader, 64 bytes a cycle between a unit and its on-chip
memory. `write_latency` is the one number calibrated here, on the coarse B=16 attention rows (see docs/streams.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Costs:
    """Energy in picojoules and area in square micrometres; the defaults are round numbers, to be replaced.

    Energy is counted for each byte moved off chip, each FLOP, and each node and cycle. Area is counted for each FLOP a
    cycle, each byte of on-chip memory (FIFOs included) and each node.

    >>> Costs(flop=0.5).flop
    0.5
    """

    off_chip_byte: float = 32.0
    flop: float = 1.0
    node_cycle: float = 0.1
    flop_area: float = 500.0
    byte_area: float = 2.0
    node_area: float = 10_000.0


@dataclass(frozen=True)
class Hardware:
    """A simulated accelerator.

    `compute` is the FLOPs a cycle of a node, `compute_of` overrides it by node name. `fifo_depths` overrides
    `fifo_depth` by the name of a stream, or by the role that it was given when it was built. A run that needs more
    than `on_chip_capacity` bytes is refused. `costs` has the energy and the area of things.

    >>> Hardware().memory_bandwidth
    1024
    >>> Hardware(channels=8).memory_bandwidth
    256
    """

    compute: int = 4096
    compute_of: Mapping[str, int] = field(default_factory=dict)
    on_chip_bandwidth: int = 64
    burst: int = 64
    channels: int = 32
    channel_bandwidth: int = 32
    requests_per_cycle: int = 1
    read_latency: int = 18
    write_latency: int = 38
    fifo_depth: int = 2
    fifo_depths: Mapping[str, int] = field(default_factory=dict)
    fifo_latency: int = 0
    switch_cycles: int = 1
    element_cycles: int = 1
    on_chip_capacity: int | None = None
    costs: Costs = field(default_factory=Costs)

    @property
    def memory_bandwidth(self) -> int:
        """Bytes a cycle of all memory channels together."""
        return self.channels * self.channel_bandwidth

    @property
    def loader_bandwidth(self) -> int:
        """Bytes a cycle that one loader can ask for."""
        return self.burst * self.requests_per_cycle

    def requested_bytes(self, rows: int, row_bytes: int) -> int:
        """Bytes moved for a tile when every row is rounded up to whole bursts.

        >>> Hardware().requested_bytes(rows=2048, row_bytes=96)
        262144
        """
        return rows * -(-row_bytes // self.burst) * self.burst

    def depth(self, role: str, name: str = "") -> int:
        """The FIFO depth of a stream with this role and this name.

        >>> Hardware(fifo_depth=1, fifo_depths={"metadata": 16}).depth("metadata")
        16
        >>> Hardware(fifo_depths={"metadata": 16, "routes": 4}).depth("metadata", "routes")
        4
        """
        return self.fifo_depths.get(name, self.fifo_depths.get(role, self.fifo_depth))
