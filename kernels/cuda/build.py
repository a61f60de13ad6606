"""From a Python kernel to a cubin, on any machine: Numba to PTX, nvJitLink to machine code, disk cache,
report.

No GPU is needed, and none is asked. PTX is never handed to the driver: newer compilers write PTX that an
older driver refuses, while it loads the cubins. A cubin is cached under a key of everything that can change
it: the sources of the kernel's module and of all it imports here, template parameters, target, compiler
versions.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import pickle
import queue
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from . import sources

TARGETS = (80, 86, 89, 90, 100, 120)
EARLY_SM = 90  # programmatic dependent launch begins with Hopper; before, its two instructions are left out
PACKAGE = __package__
_TOOLS = ("numba", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "llvmlite")


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of one template.

    `factory` is "module:function"; called with `params` it returns (python function, argument types as a
    string such as "i64 i64 i32 f32"). Parameters are hashable; a string "module:function" among them names a
    device decoder and is resolved by the factory with `resolve`. `block`: threads in x, y, z. `shared`: bytes
    of dynamic shared memory. `min_sm`: lowest target that has the instructions; `variant` "a" asks for sm_90a
    and the like. `early`: every block calls ptx.grid_wait() before it touches what earlier kernels wrote, so
    it may start early.
    """

    name: str
    factory: str
    params: tuple[tuple[str, object], ...] = ()
    block: tuple[int, int, int] = (128, 1, 1)
    shared: int = 0
    max_registers: int = 255
    min_sm: int = 80
    only_sm: tuple[int, ...] = ()
    variant: str = ""
    min_blocks: int = 0
    early: bool = False

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def serves(self, sm: int) -> bool:
        return sm >= self.min_sm and (not self.only_sm or sm in self.only_sm)


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one kernel with the linker's report. `entry` is the symbol in the image, `arguments`
    the kernel's argument types ("i64 i64 i32")."""

    image: bytes = field(repr=False)
    entry: str
    arguments: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    seconds: float


Job = tuple[KernelSpec, int, str, str]  # kernel, target, cache folder, cache key


@functools.cache
def resolve(path: str):
    """The object that "module:function" names, called once; this is how a format hands its decoder down."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)()


@functools.cache
def _tool_versions() -> str:
    found = []
    for tool in _TOOLS:
        try:
            found.append(f"{tool}={importlib.metadata.version(tool)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{tool}=none")
    return " ".join(found)


def key(spec: KernelSpec, sm: int, versions: str | None = None) -> str:
    """Cache key of a kernel for a target: hex, 32 characters."""
    digest = hashlib.sha256()
    digest.update(sources.digest(spec.factory.split(":")[0]))
    digest.update(sources.digest(PACKAGE + ".build"))
    for _, value in spec.params:
        if isinstance(value, str) and ":" in value:
            digest.update(sources.digest(value.split(":")[0]))
    digest.update(repr((spec, sm, _tool_versions() if versions is None else versions)).encode())
    return digest.hexdigest()[:32]


def arch(spec: KernelSpec, sm: int) -> str:
    return f"sm_{sm}{spec.variant}"


class _Target:
    """Device functions ask numba-cuda for the current GPU's compute capability even when compiling for
    another one; inside this context the answer is the target's. numba-cuda 0.30 has no public way to say
    it."""

    def __init__(self, sm: int) -> None:
        self.cc = (sm // 10, sm % 10)

    def __enter__(self) -> None:
        import numba.cuda.dispatcher as dispatcher

        class Target:
            compute_capability = self.cc

        self.module, self.saved = dispatcher, dispatcher.get_current_device
        dispatcher.get_current_device = lambda: Target

    def __exit__(self, *exc: object) -> None:
        self.module.get_current_device = self.saved


def _signature(argument_types: str):
    from numba import types

    names = {"i64": types.int64, "i32": types.int32, "f32": types.float32, "u32": types.uint32}
    return types.void(*[names[a] for a in argument_types.split()])


def compile_ptx(spec: KernelSpec, sm: int) -> tuple[str, str, str]:
    """PTX text, entry name and argument types."""
    from numba import cuda

    module, name = spec.factory.split(":")
    with _Target(sm):
        function, arguments = getattr(importlib.import_module(module), name)(**dict(spec.params))
        bounds = (spec.threads, spec.min_blocks) if spec.min_blocks else spec.threads
        cc = (sm // 10, sm % 10, spec.variant) if spec.variant else (sm // 10, sm % 10)
        ptx, _ = cuda.compile_ptx(
            function, _signature(arguments), cc=cc, device=False, fastmath=False, launch_bounds=bounds
        )
    if isinstance(ptx, bytes):
        ptx = ptx.decode()
    if sm < EARLY_SM:
        ptx = re.sub(r"griddepcontrol\.\w+;", "", ptx)
    entry = re.search(r"\.visible\s+\.entry\s+([\w$]+)\s*\(", ptx).group(1)
    return ptx, entry, arguments


def link(ptx: str, target: str) -> tuple[bytes, str]:
    """Machine code and the linker's verbose log."""
    from cuda.bindings import nvjitlink

    options = [f"-arch={target}", "-verbose", "-O3"]
    handle = nvjitlink.create(len(options), options)
    text = ptx.encode() + b"\0"
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel")
        nvjitlink.complete(handle)
    except nvjitlink.nvJitLinkError as error:
        size = nvjitlink.get_error_log_size(handle)
        log = bytearray(size)
        nvjitlink.get_error_log(handle, log)
        raise RuntimeError(f"{error}: {log.decode(errors='replace')}") from None
    image = bytearray(nvjitlink.get_linked_cubin_size(handle))
    nvjitlink.get_linked_cubin(handle, image)
    log = bytearray(nvjitlink.get_info_log_size(handle))
    if log:
        nvjitlink.get_info_log(handle, log)
    nvjitlink.destroy(handle)
    return bytes(image), log.decode(errors="replace")


def build_one(spec: KernelSpec, sm: int) -> Cubin:
    """Compile and link one kernel for `sm` (80, 90, ...), without looking at the cache."""
    start = time.perf_counter()
    ptx, entry, arguments = compile_ptx(spec, sm)
    image, log = link(ptx, arch(spec, sm))

    def figure(pattern: str) -> int:
        found = re.findall(pattern, log)
        return int(found[-1]) if found else 0

    return Cubin(
        image, entry, arguments,
        registers=figure(r"Used (\d+) registers"),
        spill_bytes=figure(r"(\d+) bytes spill stores") + figure(r"(\d+) bytes spill loads"),
        stack_bytes=figure(r"(\d+) bytes stack frame"),
        shared_bytes=figure(r"(\d+) bytes smem"),
        seconds=time.perf_counter() - start,
    )  # fmt: skip


class CubinCache:
    """A folder of cubins. Files appear by rename, so that several processes may fill it at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, cache_key: str) -> Cubin | None:
        path = self.folder / f"{cache_key}.cubin"
        try:
            blob = path.read_bytes()
        except FileNotFoundError:
            return None
        head, _, image = blob.partition(b"\n")
        try:
            fields = json.loads(head)
            return Cubin(image, **fields) if fields.pop("bytes") == len(image) else None
        except (ValueError, TypeError, AttributeError, KeyError):  # torn, or written by another version
            return None

    def store(self, cache_key: str, cubin: Cubin) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        fields = {name: getattr(cubin, name) for name in cubin.__slots__ if name != "image"}
        head = json.dumps({**fields, "bytes": len(cubin.image)}).encode()
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            file.write(head + b"\n" + cubin.image)
        os.replace(file.name, self.folder / f"{cache_key}.cubin")


def _build_and_store(job: Job) -> Cubin:
    spec, sm, folder, cache_key = job
    cubin = build_one(spec, sm)
    CubinCache(Path(folder)).store(cache_key, cubin)
    return cubin


def build(specs: list[KernelSpec], sm: int, folder: Path, progress=None) -> dict[str, Cubin]:
    """Cubins of `specs` for `sm` by name: from the cache, the rest built by one process per core and cached.

    `progress(done, total, name)` is called for each kernel that had to be built.
    """
    assert len({s.name for s in specs}) == len(specs), "kernel names must be unique"
    cache, found, missing = CubinCache(folder), {}, []
    for spec in specs:
        cache_key = key(spec, sm)
        cubin = cache.load(cache_key)
        if cubin is None:
            missing.append((spec, sm, str(folder), cache_key))
        else:
            found[spec.name] = cubin
    workers = min(os.cpu_count() or 1, len(missing))
    built = (
        map(_build_and_store, missing) if workers < 2 or len(missing) < 3 else _in_processes(missing, workers)
    )
    for done, (job, cubin) in enumerate(zip(missing, built), 1):
        found[job[0].name] = cubin
        if progress:
            progress(done, len(missing), job[0].name)
    return found


def _in_processes(jobs: list[Job], workers: int):
    """Results in order. The workers are fresh interpreters that import this module and nothing of the
    caller's: multiprocessing would run the caller's script again, and a fork would copy its CUDA context."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _serve; _serve()"
    idle: queue.SimpleQueue = queue.SimpleQueue()
    processes = []
    for _ in range(workers):
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        idle.put(process)

    def work(job: Job) -> Cubin:
        process = idle.get()
        try:
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError(f"the process that built {job[0].name} ended (out of memory?)") from error
        idle.put(process)
        if isinstance(answer, str):
            raise RuntimeError(f"building {job[0].name} for sm_{job[1]}: {answer}")
        return answer

    try:
        with ThreadPoolExecutor(workers) as threads:
            yield from threads.map(work, jobs)
    finally:
        for process in processes:
            process.stdin.close()
            process.stdout.close()
            process.wait()


def _serve() -> None:
    """A worker: pickled jobs on standard input, a Cubin or the text of an error back for each."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a compiler prints must not mix with the answers
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = _build_and_store(job)
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()
