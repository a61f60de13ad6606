"""Loaded kernels and how they are launched: `library.function(spec)(stream, grid, address, size, ...)`.

A launch packs its arguments into ctypes cells made once per function (4.8 us a call on an H200 host; tuples
of values and types take 6.0 us). Launches are captured into graphs like any other; a graph keeps its own
copies.
"""

import ctypes
from pathlib import Path

from cuda.bindings import driver

from .build import EARLY_SM, CubinCache, KernelSpec, build, key

_CELLS = {"i64": ctypes.c_int64, "i32": ctypes.c_int32, "f32": ctypes.c_float, "u32": ctypes.c_uint32}
_LARGE_SHARED = 48 * 1024


class LaunchError(RuntimeError):
    """The driver refused to load or start a kernel."""


def check(result: tuple, what: str):
    """The value of a driver call, or a LaunchError that names the call and the kernel."""
    status = result[0]
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"{what}: {driver.CUresult(status).name}")
    return result[1] if len(result) > 1 else None


class Function:
    """One kernel on the current context. Call it with a stream handle, a grid (x, y, z) and plain numbers."""

    def __init__(
        self, spec: KernelSpec, image: bytes, entry: str, argument_types: list[str], overlap: bool
    ) -> None:
        self.spec = spec
        self.module = check(driver.cuModuleLoadData(image), f"loading {spec.name}")
        self.handle = check(driver.cuModuleGetFunction(self.module, entry.encode()), f"finding {spec.name}")
        if spec.shared > _LARGE_SHARED:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self.handle, attribute, spec.shared), f"shared of {spec.name}")
        self.cells = [_CELLS[t](0) for t in argument_types]
        self.pointers = (ctypes.c_void_p * len(self.cells))(*map(ctypes.addressof, self.cells))
        self.address = ctypes.addressof(self.pointers)
        self.early = _early_launch(spec) if overlap else None

    def __call__(self, stream: int, grid: tuple[int, int, int], *arguments: float) -> None:
        assert len(arguments) == len(self.cells), (self.spec.name, len(arguments), len(self.cells))
        for cell, value in zip(self.cells, arguments):
            cell.value = value
        gx, gy, gz = grid
        if self.early is not None:
            launch = self.early
            launch.gridDimX, launch.gridDimY, launch.gridDimZ, launch.hStream = gx, gy, gz, stream
            status = driver.cuLaunchKernelEx(launch, self.handle, self.address, 0)[0]
        else:
            bx, by, bz = self.spec.block
            status = driver.cuLaunchKernel(
                self.handle, gx, gy, gz, bx, by, bz, self.spec.shared, stream, self.address, 0
            )[0]
        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(f"launching {self.spec.name} on grid {grid}: {driver.CUresult(status).name}")


def _early_launch(spec: KernelSpec):
    """Launch parameters of a kernel that may start while the one before it ends, up to its grid_wait()."""
    config = driver.CUlaunchConfig()
    config.blockDimX, config.blockDimY, config.blockDimZ = spec.block
    config.sharedMemBytes = spec.shared
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.attrs, config.numAttrs = [attribute], 1
    return config


class Library:
    """Kernels of one target, built at most once and loaded when first asked for.

    `folder` is the cubin cache; `prebuilt`, if given, is a second folder looked at first whose cubins were
    built from the same sources by any toolchain.
    """

    def __init__(self, sm: int, folder: Path, prebuilt: Path | None = None) -> None:
        self.sm, self.folder = sm, folder
        self.prebuilt = CubinCache(prebuilt) if prebuilt else None
        self.functions: dict[KernelSpec, Function] = {}

    def prepare(self, specs: list[KernelSpec], progress=None) -> None:
        """Build what is missing among `specs`, in parallel, and load all of them."""
        todo = [s for s in dict.fromkeys(specs) if s not in self.functions]
        if self.prebuilt:
            for spec in list(todo):
                cubin = self.prebuilt.load(key(spec, self.sm, versions=""))
                if cubin:
                    self._load(spec, cubin)
                    todo.remove(spec)
        if todo:
            cubins = build(todo, self.sm, self.folder, progress)
            for spec in todo:
                self._load(spec, cubins[spec.name])

    def _load(self, spec: KernelSpec, cubin) -> None:
        overlap = spec.early and self.sm >= EARLY_SM
        self.functions[spec] = Function(spec, cubin.image, cubin.entry, cubin.arguments.split(), overlap)

    def function(self, spec: KernelSpec) -> Function:
        found = self.functions.get(spec)
        if found is None:
            self.prepare([spec])
            found = self.functions[spec]
        return found
