"""The Hardware object: every knob of the simulated accelerator, in one place.

Operators hold none of these numbers. Defaults are those of the published evaluation: 32 memory channels of 32
bytes a cycle, 64-byte bursts, one request a cycle and loader, 64 bytes a cycle between a unit and its on-chip
memory. `write_latency` is the one number calibrated here, on the coarse B=16 attention rows (see docs/streams.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt


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

    Four effects are off by default. With `row_cycles`, every row of `row_bytes` that a transfer touches has to be
    opened, those in different `dram_banks` at the same time. With `sram_banks`, a unit reads that many operands at
    the same time. `hop_cycles` is the time between neighbours on a square of processes, in the order of the program.
    `reconfigure_cycles` pass in the loaders of a shared region when it goes over to another branch.

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
    dram_banks: int = 16
    row_bytes: int = 1024
    row_cycles: int = 0
    sram_banks: int = 1
    hop_cycles: int = 0
    reconfigure_cycles: int = 0
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

    def row_latency(self, nbytes: int) -> int:
        """Cycles to open the rows that a transfer touches.

        >>> Hardware().row_latency(65536), Hardware(row_cycles=30).row_latency(65536)
        (0, 120)
        """
        return self.row_cycles * -(-nbytes // (self.row_bytes * self.dram_banks))

    def read_cycles(self, operands: Sequence[int]) -> int:
        """Cycles to read operands that take so many cycles each, from as many banks as there are.

        >>> Hardware().read_cycles([4, 3, 2]), Hardware(sram_banks=2).read_cycles([4, 3, 2])
        (9, 5)
        """
        if self.sram_banks == 1:
            return sum(operands)
        banks = [0] * self.sram_banks
        for cycles in sorted(operands, reverse=True):
            banks[banks.index(min(banks))] += cycles
        return max(banks)

    def distance(self, one: int, other: int, processes: int) -> int:
        """Hops between two processes by their numbers, on a square that is filled row by row.

        >>> Hardware().distance(0, 5, processes=9)
        3
        """
        side = isqrt(max(processes - 1, 0)) + 1
        return abs(one // side - other // side) + abs(one % side - other % side)

    def depth(self, role: str, name: str = "") -> int:
        """The FIFO depth of a stream with this role and this name.

        >>> Hardware(fifo_depth=1, fifo_depths={"metadata": 16}).depth("metadata")
        16
        >>> Hardware(fifo_depths={"metadata": 16, "routes": 4}).depth("metadata", "routes")
        4
        """
        return self.fifo_depths.get(name, self.fifo_depths.get(role, self.fifo_depth))
