"""What the machine can do, measured in the same run as what xinfer does: reading memory, and torch's
matmul."""

from collections.abc import Callable

from xinfer.kernels.cuda.bandwidth import Read

from xinfer.device.cuda import CudaDevice

SIZE = 4 << 30  # far more than the caches hold


def seconds(device: CudaDevice, enqueue: Callable[[int], None], count: int, repeats: int = 5) -> float:
    """Seconds of one of `count` launches, captured as one graph: the best of `repeats` replays."""
    enqueue(0)  # loads the kernel, which a capture cannot
    device.synchronize()
    with device.capture() as graph:
        for i in range(count):
            enqueue(i)
    graph.replay()
    best = float("inf")
    start, end = device.event(timing=True), device.event(timing=True)
    for _ in range(repeats):
        start.record()
        graph.replay()
        end.record()
        device.synchronize()
        best = min(best, end.seconds_since(start))
    for part in (graph, start, end):
        part.close()
    return best / count


def read_bandwidth(device: CudaDevice) -> float:
    """Bytes per second of a kernel that does nothing but read."""
    memory, sink = device.alloc(SIZE, "bandwidth test"), device.alloc(256, "bandwidth test")
    read = Read(device.library)
    device.fill_random(memory, 1)
    took = seconds(device, lambda i: read(device.stream, sink, memory, device.processors), 1)
    device.free(memory)
    device.free(sink)
    return Read.bytes(SIZE, device.processors) / took


def torch_matmul_rate(m: int, n: int, k: int) -> float | None:
    """FLOP per second of torch.matmul in bf16, or None where torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    best = float("inf")
    for _ in range(5):
        start.record()
        for w in weights:
            x @ w.T
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3 / len(weights))
    del x, weights
    torch.cuda.empty_cache()
    return 2 * m * n * k / best
