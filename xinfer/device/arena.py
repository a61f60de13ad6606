"""The arena: every activation has a name and a fixed address; nothing is allocated once it is committed.

Plan: the decoder's own `take` calls run once with the largest T and only record sizes. Commit: one
allocation, each name its own region. Run: `ws.take("qkv", (T, (H + 2*G) * E), F32)` is the front part of its
region, so that every step and every captured graph sees the same address. Names of one `overlay` start at the
same address: at most one of them is alive at a time, and taking one ends the others.
"""

import math

from xinfer.tensor import DType, Tensor

from .base import ALIGNMENT, Device


class Arena:
    """Named regions of one allocation."""

    def __init__(self) -> None:
        self.planned: dict[str, int] = {}  # bytes of the largest tensor each name was planned for
        self.used: dict[str, int] = {}  # bytes of the largest tensor taken since commit
        self.overlays: dict[str, str] = {}  # name -> overlay, "" for a region of its own
        self.addresses: dict[str, int] = {}
        self.memory: Tensor | None = None

    def take(self, name: str, shape: tuple[int, ...], dtype: DType, *, overlay: str = "") -> Tensor:
        """A dense tensor at the name's address; before commit, the record of one (its address is 0, not to be
        used). Contents are undefined: whatever the last user of the region left."""
        nbytes = math.prod(shape) * dtype.itemsize
        if self.memory is None:
            assert self.overlays.setdefault(name, overlay) == overlay, (
                f"{name}: overlay {overlay!r} came late"
            )
            self.planned[name] = max(self.planned.get(name, 0), nbytes)
            return Tensor(0, tuple(shape), dtype)
        planned = self.planned.get(name, -1)
        assert nbytes <= planned, f"activation {name!r}: {shape} is {nbytes:,} bytes, planned {planned:,}"
        if nbytes > self.used[name]:
            self.used[name] = nbytes
        return Tensor(self.addresses[name], tuple(shape), dtype, 0, self.memory.owner)

    @property
    def nbytes(self) -> int:
        """Bytes of the allocation that the plan needs."""
        return sum(self._regions(self.planned).values())

    @property
    def high_water(self) -> int:
        """Bytes of the regions as far as they were taken since commit; never more than nbytes."""
        return sum(self._regions(self.used).values())

    def commit(self, device: Device) -> None:
        """Allocate; from now on `take` gives memory and refuses what was not planned."""
        assert self.memory is None, "committed twice"
        regions = self._regions(self.planned)
        self.memory = device.alloc(sum(regions.values()), "activations")
        starts, at = {}, self.memory.ptr
        for region, nbytes in regions.items():
            starts[region], at = at, at + nbytes
        self.addresses = {name: starts[self._region(name)] for name in self.planned}
        self.used = dict.fromkeys(self.planned, 0)

    def check(self) -> None:
        """Invariants: regions are aligned, disjoint and inside the allocation; nothing was taken beyond its
        plan."""
        assert self.memory is not None, "not committed"
        regions, end = self._regions(self.planned), self.memory.ptr
        starts = {self._region(name): address for name, address in self.addresses.items()}
        for region, start in sorted(starts.items(), key=lambda item: item[1]):
            assert start % ALIGNMENT == 0 and start >= end, (region, start, end)
            end = start + regions[region]
        assert end <= self.memory.ptr + self.memory.nbytes
        assert self.high_water <= self.nbytes
        for name in self.planned:
            assert self.addresses[name] == starts[self._region(name)], name
            assert self.used[name] <= self.planned[name], name

    def describe(self) -> list[tuple[str, int]]:
        """(name, planned bytes), largest first."""
        return sorted(self.planned.items(), key=lambda item: -item[1])

    def close(self, device: Device) -> None:
        """Give the memory back; the plan stays."""
        if self.memory is not None:
            device.free(self.memory)
            self.memory = None

    def _region(self, name: str) -> tuple[str, str]:
        overlay = self.overlays[name]
        return ("overlay", overlay) if overlay else ("name", name)

    def _regions(self, sizes: dict[str, int]) -> dict[tuple[str, str], int]:
        """Aligned bytes of each region: the largest of its names."""
        regions: dict[tuple[str, str], int] = {}
        for name, nbytes in sizes.items():
            region = self._region(name)
            aligned = -(-nbytes // ALIGNMENT) * ALIGNMENT
            regions[region] = max(regions.get(region, 0), aligned)
        return regions
