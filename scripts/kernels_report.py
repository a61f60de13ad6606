#!/usr/bin/env python
"""Build every kernel for every target, without a GPU, and print what the compiler made of it.

    scripts/kernels_report.py                     all kernels, all targets
    scripts/kernels_report.py --sm 90 --only fill
    scripts/kernels_report.py --sm 90 --save prebuilt/    and write a folder for machines that do not compile

Exit code 1 when a kernel spills, uses stack memory or is over its register budget, or cannot be built.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from xinfer.kernels.cuda.build import TARGETS, Cubin, CubinCache, KernelSpec, build, key
from xinfer.kernels.cuda.catalog import catalog

from xinfer import env, formats

_COLUMNS = "{:<44} {:>4} {:>5} {:>4} {:>6} {:>6} {:>7} {:>6} {:>8}"
_HEAD = _COLUMNS.format("kernel", "sm", "regs", "max", "spill", "stack", "shared", "sec", "bytes")


def decoders() -> dict[str, str]:
    """{name in kernel names: "module:function"} of the device decoders of all formats that have one."""
    return {f.kernel_name: f.decoder for f in formats.FORMATS.values() if f.decoder}


def faults(spec: KernelSpec, cubin: Cubin) -> list[str]:
    """What is wrong with a kernel's machine code, in words."""
    out = []
    if cubin.spill_bytes:
        out.append(f"spills {cubin.spill_bytes} bytes")
    if cubin.stack_bytes:
        out.append(f"uses {cubin.stack_bytes} bytes of stack")
    if cubin.registers > spec.max_registers:
        out.append(f"uses {cubin.registers} registers, budget {spec.max_registers}")
    return out


def row(spec: KernelSpec, sm: int, cubin: Cubin) -> str:
    shared = cubin.shared_bytes + spec.shared
    counts = (cubin.registers, spec.max_registers, cubin.spill_bytes, cubin.stack_bytes, shared)
    return _COLUMNS.format(spec.name, sm, *counts, f"{cubin.seconds:.2f}", len(cubin.image))


def report(specs: list[KernelSpec], sm: int, folder: Path, save: Path | None) -> int:
    """Build `specs` for `sm`, print their table, return the number of faulty kernels."""
    start, built, bad = time.perf_counter(), [], 0

    def progress(done: int, total: int, name: str) -> None:
        built.append(name)
        print(f"\r  sm_{sm}: built {done} of {total} ", end="", file=sys.stderr, flush=True)

    cubins = build(specs, sm, folder, progress)
    wall = time.perf_counter() - start
    if built:
        print(file=sys.stderr)
    for spec in sorted(specs, key=lambda s: s.name):
        cubin = cubins[spec.name]
        wrong = faults(spec, cubin)
        bad += bool(wrong)
        print(row(spec, sm, cubin) + ("   " + ", ".join(wrong) if wrong else ""))
        if save:
            CubinCache(save).store(key(spec, sm, versions=""), cubin)
    registers = max((c.registers for c in cubins.values()), default=0)
    size, compiled = (sum(x) for x in zip(*[(len(c.image), c.seconds) for c in cubins.values()] or [(0, 0)]))
    print(
        f"sm_{sm}: {len(cubins)} kernels, {len(built)} built now in {wall:.1f} s, {compiled:.1f} s of work, "
        f"{size:,} bytes, at most {registers} registers, {bad} faulty\n"
    )
    return bad


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--sm", type=int, action="append", choices=TARGETS, help="a target, may be repeated (all)"
    )
    parser.add_argument("--only", default="", metavar="SUBSTR", help="kernels whose name contains this")
    parser.add_argument(
        "--save", type=Path, metavar="DIR", help="write a prebuilt folder, keyed without compiler versions"
    )
    parser.add_argument("--folder", type=Path, help="cubin cache (the engine's own)")
    parser.add_argument("--cold", action="store_true", help="build everything anew, into a temporary folder")
    options = parser.parse_args(arguments)
    folder = options.folder or env.load().cache / "cubins"
    specs = [s for s in catalog(decoders()) if options.only in s.name]
    print(_HEAD)
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        for sm in options.sm or TARGETS:
            serving = [s for s in specs if s.serves(sm)]
            bad += report(serving, sm, Path(temporary) if options.cold else folder, options.save)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
