"""Pseudo-random contents for dummy weights: each 32-bit word is a hash of its index and a seed.

    h(e) = mix(mix(lo(e) ^ mix(hi(e) + s)) + s),  s = mix(seed),  mix = MurmurHash3's finalizer
    bytes   word w = h(w)          scales  two f16 in [2^-10, 2^-9): h(w) & 0x03ff03ff | 0x14001400
    f32     word w = normal(h(w))  bf16    normal(h(2w)), normal(h(2w+1)), rounded to nearest
with normal(h) = (sum of h's four bytes - 510) * 0.02/147.8, about N(0, 0.02) and never beyond 0.07. The NumPy
meaning is xinfer.device.cpu.pattern. Bytes moved: the output, written once.
"""

from numba import cuda, float32, int32, int64, uint16, uint32

from . import ptx
from .build import KernelSpec
from .launch import Library

KINDS = ("f32", "bf16", "scales", "bytes")
THREADS = 256
MAX_BLOCKS = 2048
DEVIATION = float32(0.02 / 147.8)

st_u8 = ptx.instruction("st.global.u8 [$0], $1;", "", "i64 u16", memory=True)


@ptx.device
def mix(x):
    x = uint32(uint32(x ^ uint32(x >> uint32(16))) * uint32(0x85EBCA6B))
    x = uint32(uint32(x ^ uint32(x >> uint32(13))) * uint32(0xC2B2AE35))
    return uint32(x ^ uint32(x >> uint32(16)))


@ptx.device
def hashed(element, base):
    high = mix(uint32(uint32(element >> int64(32)) + base))
    inner = mix(uint32(uint32(element & int64(0xFFFFFFFF)) ^ high))
    return mix(uint32(inner + base))


@ptx.device
def normal(h):
    low = uint32(uint32(h & uint32(0xFF00FF)) + uint32(uint32(h >> uint32(8)) & uint32(0xFF00FF)))
    total = int32(uint32(uint32(low & uint32(0xFFFF)) + uint32(low >> uint32(16))))
    return ptx.mul_rn(float32(int32(total - int32(510))), DEVIATION)


@ptx.device
def word_f32(w, base):
    return ptx.bits_of_f32(normal(hashed(w, base)))


@ptx.device
def word_bf16(w, base):
    first = int64(w * int64(2))
    return ptx.pack_bf16x2(normal(hashed(first, base)), normal(hashed(int64(first + int64(1)), base)))


@ptx.device
def word_scales(w, base):
    return ptx.and_or(hashed(w, base), uint32(0x03FF03FF), uint32(0x14001400))


WORDS = {"f32": word_f32, "bf16": word_bf16, "scales": word_scales, "bytes": hashed}


def fill_kernel(kind: str):
    word = WORDS[kind]

    def fill(out, size, seed):
        base = mix(seed)
        first = int64(cuda.blockIdx.x) * int64(cuda.blockDim.x) + int64(cuda.threadIdx.x)
        words = int64(size >> int64(2))
        for w in range(first, words, int64(cuda.gridDim.x) * int64(cuda.blockDim.x)):
            ptx.st32(out + int64(w * int64(4)), word(w, base))
        if first == int64(0):
            last = word(words, base)
            for b in range(int64(size & int64(3))):
                piece = uint32(last >> uint32(uint32(b) * uint32(8)))
                st_u8(out + int64(words * int64(4)) + b, uint16(piece & uint32(255)))

    return fill, "i64 i64 u32"


def spec(kind: str) -> KernelSpec:
    params = (("kind", kind),)
    return KernelSpec(f"fill_{kind}", f"{__name__}:fill_kernel", params, (THREADS, 1, 1), max_registers=40)


def catalog() -> list[KernelSpec]:
    return Fill.specs()


class Fill:
    """`fill(stream, out, kind, seed)`: overwrite a dense tensor whose address is a multiple of four."""

    def __init__(self, library: Library) -> None:
        self.library = library

    @staticmethod
    def specs() -> list[KernelSpec]:
        return [spec(kind) for kind in KINDS]

    def __call__(self, stream: int, out, kind: str, seed: int) -> None:
        assert out.ptr % 4 == 0, out
        blocks = min(MAX_BLOCKS, out.nbytes // (4 * THREADS) + 1)
        kernel = self.library.function(spec(kind))
        kernel(stream, (blocks, 1, 1), out.ptr, out.nbytes, seed & 0xFFFFFFFF)

    @staticmethod
    def bytes(nbytes: int) -> int:
        return nbytes
