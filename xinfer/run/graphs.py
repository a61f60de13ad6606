"""Decode steps as CUDA graphs: one for each batch size in a short ladder, captured once, replayed ever after.

A step of n sequences runs in the smallest graph that holds them; the other rows are inert. Rows do not depend
on each other, so the graph's size changes no bit.
"""

from collections.abc import Callable

from xinfer.device import Device, Graph

_SMALL = (1, 2, 4, 8, 12, 16, 24, 32)


def ladder(max_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 12, 16, 24, 32, 48, 64 ... up to and including max_seqs."""
    sizes = [n for n in _SMALL if n < max_seqs] + list(range(48, max_seqs, 16)) + [max_seqs]
    return tuple(sizes)


class DecodeGraphs:
    """`enqueue(size, penalized)` puts a decode step of `size` sequences on the stream; it runs once eagerly
    before it is captured, so that every kernel is loaded by then."""

    def __init__(self, device: Device, max_seqs: int, enqueue: Callable[[int, bool], None]) -> None:
        self.device, self.enqueue = device, enqueue
        self.sizes = ladder(max_seqs)
        self.graphs: dict[tuple[int, bool], Graph] = {}

    def size(self, seqs: int) -> int:
        return next(n for n in self.sizes if n >= seqs)

    def replay(self, size: int, penalized: bool) -> None:
        graph = self.graphs.get((size, penalized))
        if graph is None:
            graph = self.capture(size, penalized)
        graph.replay()

    def capture(self, size: int, penalized: bool) -> Graph:
        """Record the step without running it; the inputs may be anything."""
        with self.device.capture() as graph:
            self.enqueue(size, penalized)
        self.graphs[size, penalized] = graph
        return graph

    def close(self) -> None:
        for graph in self.graphs.values():
            graph.close()
        self.graphs.clear()
