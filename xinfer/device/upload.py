"""Host arrays into device memory at the speed of the link, through a ring of pinned buffers.

A copy from pageable memory runs at a fraction of the link's speed; copying pieces into pinned buffers takes
several cores to keep up with it (55 GB/s on PCIe gen 5 against about 10 GB/s a core), so the pieces of one
array are spread over threads, and each thread has two buffers: one being filled, one under way. 8 MiB pieces
reach 98 % of the link.
"""

import ctypes
import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor, wait

from xinfer.tensor import DType, Tensor

from .base import Device

PIECE = 8 << 20
_MOST_THREADS = 8


class Uploader:
    """The ring of one device; its buffers are made at the first upload."""

    def __init__(self, device: Device, piece: int = PIECE) -> None:
        self.device, self.piece = device, piece
        self.threads = min(_MOST_THREADS, os.cpu_count() or 1)
        self.slots: queue.SimpleQueue = queue.SimpleQueue()
        self.pool: ThreadPoolExecutor | None = None
        self.lock = threading.Lock()

    def upload(self, dst: int, source: int, nbytes: int) -> None:
        """Put `nbytes` from host address `source` to device address `dst` on the copy stream; on return the
        source is free for reuse. Any thread."""
        if self.pool is None:
            self._start()
        starts = range(0, nbytes, self.piece)
        pieces = [(dst + a, source + a, min(self.piece, nbytes - a)) for a in starts]
        if len(pieces) < 2:
            for piece in pieces:
                self._move(piece)
            return
        moves = [self.pool.submit(self._move, piece) for piece in pieces]
        wait(moves)  # also when one fails: nobody may still read the source after the return
        for move in moves:
            move.result()

    def close(self) -> None:
        """End the threads and give the buffers back."""
        with self.lock:
            if self.pool is None:
                return
            self.pool.shutdown()
            self.pool = None
            while not self.slots.empty():
                self.slots.get()[1].close()
            self.device.free(self.ring)

    def _start(self) -> None:
        with self.lock:
            if self.pool is not None:
                return
            count = 2 * self.threads
            self.ring = self.device.host_alloc(count * self.piece, what="upload buffers")
            for i in range(count):
                self.slots.put((self.ring.rows(i * self.piece, (i + 1) * self.piece), self.device.event()))
            self.pool = ThreadPoolExecutor(self.threads, thread_name_prefix="upload")

    def _move(self, piece: tuple[int, int, int]) -> None:
        dst, source, nbytes = piece
        buffer, sent = slot = self.slots.get()
        try:
            sent.synchronize()  # the buffer's last piece has left
            ctypes.memmove(buffer.ptr, source, nbytes)  # without the interpreter lock
            target = Tensor(dst, (nbytes,), DType.U8)
            self.device.copy(target, buffer.rows(0, nbytes), stream=self.device.copy_stream)
            sent.record(self.device.copy_stream)
        finally:
            self.slots.put(slot)
