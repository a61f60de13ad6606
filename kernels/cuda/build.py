"""From a Python kernel to a cubin, on any machine: Numba to PTX, nvJitLink to machine code, disk cache, report.

No GPU is needed, and none is asked. PTX is never handed to the driver: newer compilers write PTX that an older
driver refuses, while it loads the cubins. A cubin is cached under a key of everything that can change it: the
sources of the kernel's module and of all it imports here, template parameters, target, compiler versions.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

TARGETS = (80, 86, 89, 90, 100, 120)
PACKAGE = __package__
_TOOLS = ("numba", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "llvmlite")


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel of one template.

    `factory` is "module:function"; called with `params` it returns (python function, argument types as a string
    such as "i64 i64 i32 f32"). Parameters are hashable; a string "module:function" among them names a device
    decoder and is resolved by the factory with `resolve`. `block`: threads in x, y, z. `shared`: bytes of dynamic
    shared memory. `min_sm`: lowest target that has the instructions; `variant` "a" asks for sm_90a and the like.
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

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def serves(self, sm: int) -> bool:
        return sm >= self.min_sm and (not self.only_sm or sm in self.only_sm)


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of one kernel with the linker's report. `entry` is the symbol in the image, `arguments` the
    kernel's argument types ("i64 i64 i32")."""

    image: bytes = field(repr=False)
    entry: str
    arguments: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    seconds: float


@functools.cache
def resolve(path: str):
    """The object that "module:function" names, called once; this is how a format hands its decoder down."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)()


@functools.cache
def _source_closure(module_name: str) -> bytes:
    """Sources of a module and of every project module it imports, in a fixed order."""
    module = importlib.import_module(module_name)
    root = module_name.split(".")[0]
    seen, todo = {}, [module]
    while todo:
        m = todo.pop()
        if m.__name__ in seen or not getattr(m, "__file__", None):
            continue
        text = Path(m.__file__).read_bytes()
        seen[m.__name__] = text
        names = re.findall(rb"^\s*(?:from|import)\s+([\w.]+)(?:\s+import\s+([\w, ]+))?", text, re.M)
        for base, parts in names:
            base = _absolute(base.decode(), m)
            for name in [base] + [f"{base}.{p.strip()}" for p in parts.decode().split(",") if p.strip()]:
                if name.split(".")[0] == root and name in sys.modules:
                    todo.append(sys.modules[name])
    return b"\0".join(k.encode() + b"\0" + seen[k] for k in sorted(seen))


def _absolute(name: str, module) -> str:
    if not name.startswith("."):
        return name
    dots = len(name) - len(name.lstrip("."))
    parts = module.__name__.split(".")
    base = parts[: len(parts) - dots + (1 if hasattr(module, "__path__") else 0)]
    return ".".join(base + ([name.lstrip(".")] if name.lstrip(".") else []))


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
    digest.update(_source_closure(spec.factory.split(":")[0]))
    digest.update(_source_closure(PACKAGE + ".build"))
    for _, value in spec.params:
        if isinstance(value, str) and ":" in value:
            digest.update(_source_closure(value.split(":")[0]))
    digest.update(repr((spec, sm, _tool_versions() if versions is None else versions)).encode())
    return digest.hexdigest()[:32]


def arch(spec: KernelSpec, sm: int) -> str:
    return f"sm_{sm}{spec.variant}"


class _Target:
    """Device functions ask numba-cuda for the current GPU's compute capability even when compiling for another
    one; inside this context the answer is the target's. numba-cuda 0.30 has no public way to say it."""

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
    import time

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
        except ValueError:
            return None
        if len(image) != fields.pop("bytes"):
            return None
        return Cubin(image, **fields)

    def store(self, cache_key: str, cubin: Cubin) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        fields = {name: getattr(cubin, name) for name in cubin.__slots__ if name != "image"}
        head = json.dumps({**fields, "bytes": len(cubin.image)}).encode()
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            file.write(head + b"\n" + cubin.image)
        os.replace(file.name, self.folder / f"{cache_key}.cubin")


def _build_and_store(job: tuple[KernelSpec, int, str, str]) -> tuple[str, Cubin]:
    spec, sm, folder, cache_key = job
    cubin = build_one(spec, sm)
    CubinCache(Path(folder)).store(cache_key, cubin)
    return cache_key, cubin


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
    if not missing:
        return found
    workers = min(os.cpu_count() or 1, len(missing))
    if workers == 1 or len(missing) < 3:
        results = map(_build_and_store, missing)
        return found | _collect(missing, results, progress)
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return found | _collect(missing, pool.map(_build_and_store, missing), progress)


def _collect(missing: list, results, progress) -> dict[str, Cubin]:
    out = {}
    for done, (job, (_, cubin)) in enumerate(zip(missing, results), 1):
        out[job[0].name] = cubin
        if progress:
            progress(done, len(missing), job[0].name)
    return out
