"""Every matmul kernel on real shapes: GB/s of few rows beside a plain read, TFLOP/s of many beside
torch.matmul.

scripts/bench_kernels.py                      all formats, shapes of an 8B model
scripts/bench_kernels.py --formats q4_k --rows 1 8 2048
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ceilings import read_bandwidth, seconds, torch_matmul_rate
from xinfer.kernels.cuda.linear import Linear

from xinfer.device import open_device
from xinfer.formats import FORMATS
from xinfer.formats.format import Format
from xinfer.formats.weight import Weight
from xinfer.tensor import DType, Tensor

SHAPES = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
ROWS = (1, 8, 32, 64, 512, 4096)
CACHE = 300 << 20  # weights of a round: several times the L2 cache


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    args = parser.parse_args()
    with open_device("cuda") as device:
        bandwidth = read_bandwidth(device)
        print(f"{device.name}: read {bandwidth / 1e12:.3f} TB/s")
        for name in dict.fromkeys(FORMATS[f].kernel_name for f in args.formats):
            for n, k in SHAPES:
                measure(device, name, n, k, args.rows, bandwidth)


def dummy_weight(device, format: Format, n: int, k: int, seed: int) -> Weight:
    """A packed weight of noise."""
    planes = []
    for i, plane in enumerate(format.planes(n, k)):
        kind = "bf16" if format.kernel_name == "bf16" else "scales" if "scale" in plane.name else "bytes"
        planes.append(device.alloc(plane.nbytes))
        device.fill_random(planes[-1], seed + i, kind=kind)
    return Weight(format, n, k, tuple(planes))


def measure(device, name: str, n: int, k: int, rows: tuple[int, ...], bandwidth: float) -> None:
    """A line for each number of rows."""
    weights: list[Weight] = [dummy_weight(device, FORMATS[name], n, k, seed=1)]
    while sum(w.nbytes for w in weights) < CACHE:
        weights.append(dummy_weight(device, FORMATS[name], n, k, seed=1 + len(weights)))
    linear = Linear(device.library, device.processors)
    for t in rows:
        x = device.alloc(2 * t * k).view((t, k), DType.BF16)
        out = device.alloc(4 * t * n).view((t, n), DType.F32)
        device.fill_random(x, 7)
        count = len(weights) * (4 if t <= 64 else 1)

        def launch(i: int, out: Tensor = out, x: Tensor = x) -> None:
            linear(device.stream, out, x, weights[i % len(weights)])

        took = seconds(device, launch, count)
        nbytes = Linear.bytes(weights[0].nbytes, t, n, k)
        line = (
            f"{name:5s} {n:6d} x {k:5d} rows {t:5d}: {took * 1e6:9.1f} us {nbytes / took / 1e12:6.3f} TB/s "
        )
        line += f"({nbytes / took / bandwidth:5.3f} of the read) {2 * t * n * k / took / 1e12:7.1f} TFLOP/s"
        rate = torch_matmul_rate(t, n, k) if t >= 512 else None
        if rate:
            line += f" ({2 * t * n * k / took / rate:5.3f} of torch's {rate / 1e12:.0f})"
        print(line, flush=True)
        device.free(x)
        device.free(out)
    for weight in weights:
        for plane in weight.planes:
            device.free(plane)


if __name__ == "__main__":
    main()
