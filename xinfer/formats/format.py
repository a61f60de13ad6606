"""What a weight format is: how its bytes decode, how they lie on the device, how a kernel reads them there.

Fragment order, the device layout of every format: W[N,K] is cut into tiles of 16 rows by 64 k, tile number
(n//16) * (K/64) + k//64. Lane l of a warp, g = l//4, t = l%4, owns 32 weights of a tile, in the order [s
0..3][j 0..3][e 0..1]: row 16*(n//16) + g + 8*(j & 1), k 64*(k//64) + 16*s + 8*(j >> 1) + 2*t + e, which is
half e of register j of the A operand of mma m16n8k16 at step s. Bits of a lane come in pieces of 16 bytes,
piece p of lane l at byte (p*32 + l)*16 of the tile's part of the plane.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ROWS = 16
GROUP = 64


@dataclass(frozen=True, slots=True)
class Plane:
    """A part of a packed weight: `nbytes` for the whole matrix, a fixed number for each 16 x 64 tile."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Format:
    """`block` weights along K take `block_bytes` in the file. All quantised formats have one numeric form in
    a matmul: the f32 value of decode(), rounded once to bf16.

    decode(raw u8 [..., K/block*block_bytes]) -> f32 [..., K]
    pack(raw u8 [N, K/block*block_bytes]) -> u8 array of each plane, N padded to 16 and K to 64 by zeros
    unpack(planes, N, K) -> f32 [N,K]: what a kernel sees, for tests
    bits: (plane name, bytes a tile) of each plane
    decoder: "module:function" that gives the device decoder; kernel_name: formats with one share kernels
    encode(f32 [..., K]) -> raw, where quantising is part of the format's definition
    """

    name: str
    block: int
    block_bytes: int
    decode: Callable[[np.ndarray], np.ndarray]
    pack: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    unpack: Callable[[tuple[np.ndarray, ...], int, int], np.ndarray]
    bits: tuple[tuple[str, int], ...]
    decoder: str
    kernel_name: str
    ggml_type: int | None = None
    safetensors: str | None = None
    encode: Callable[[np.ndarray], np.ndarray] | None = None

    def planes(self, n: int, k: int) -> tuple[Plane, ...]:
        """Planes of a matrix [N,K]."""
        count = tiles(n, k)
        return tuple(Plane(name, count * nbytes) for name, nbytes in self.bits)

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of K weights in the file."""
        assert k % self.block == 0, (self.name, k)
        return k // self.block * self.block_bytes


def tiles(n: int, k: int) -> int:
    """Tiles of a matrix [N,K]."""
    return -(-n // ROWS) * -(-k // GROUP)


def blocks(raw: np.ndarray, block_bytes: int) -> np.ndarray:
    """u8 [..., row bytes] -> u8 [..., blocks, block_bytes]."""
    assert raw.shape[-1] % block_bytes == 0, (raw.shape, block_bytes)
    return np.ascontiguousarray(raw).reshape(*raw.shape[:-1], -1, block_bytes)


def f16(raw: np.ndarray, at: int) -> np.ndarray:
    """The f16 at byte `at` of each block, as f32 [..., blocks, 1]."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view(np.float16).astype(np.float32)


def nibbles(codes: np.ndarray) -> np.ndarray:
    """u8 [..., b] -> u8 [..., 2b]: all low nibbles, then all high ones."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def fragments(values: np.ndarray) -> np.ndarray:
    """[N,K] of any type -> [tiles, 32 lanes, 4 s, 4 j, 2 e] in fragment order, padded with zeros."""
    n, k = values.shape
    padded = np.zeros((-(-n // ROWS) * ROWS, -(-k // GROUP) * GROUP), values.dtype)
    padded[:n, :k] = values
    # n = nt, j0, g; k = kg, s, j1, t, e
    split = padded.reshape(padded.shape[0] // ROWS, 2, 8, padded.shape[1] // GROUP, 4, 2, 4, 2)
    return split.transpose(0, 3, 2, 6, 4, 5, 1, 7).reshape(-1, 32, 4, 4, 2)


def matrix(lanes: np.ndarray, n: int, k: int) -> np.ndarray:
    """The inverse of `fragments`."""
    groups = -(-k // GROUP)
    split = lanes.reshape(-(-n // ROWS), groups, 8, 4, 4, 2, 2, 2)
    whole = split.transpose(0, 6, 2, 1, 4, 5, 3, 7)
    return np.ascontiguousarray(whole).reshape(-(-n // ROWS) * ROWS, groups * GROUP)[:n, :k]


def pieces(lanes: np.ndarray) -> np.ndarray:
    """u8 [tiles, 32 lanes, bytes] -> flat u8 in pieces of 16 bytes, or as they are when a lane has fewer."""
    count, _, nbytes = lanes.shape
    if nbytes > 16:
        lanes = lanes.reshape(count, 32, nbytes // 16, 16).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(lanes).reshape(-1)


def lanes_of(plane: np.ndarray, nbytes: int) -> np.ndarray:
    """The inverse of `pieces`: u8 [tiles, 32 lanes, nbytes]."""
    if nbytes > 16:
        return plane.reshape(-1, nbytes // 16, 32, 16).transpose(0, 2, 1, 3).reshape(-1, 32, nbytes)
    return plane.reshape(-1, 32, nbytes)


def row_scales(values: np.ndarray, per_tile: int) -> np.ndarray:
    """[N, K/64*per_tile, ...] values of a row's blocks -> flat u8 [tiles][g 0..7][half 0..1][per_tile][...],
    so that a lane finds those of its rows g and g+8 in one load. `per_tile`: blocks of a row in 64 k."""
    n, count, *rest = values.shape
    groups = -(-count // per_tile)
    padded = np.zeros((-(-n // ROWS) * ROWS, groups * per_tile, *rest), values.dtype)
    padded[:n, :count] = values
    split = padded.reshape(padded.shape[0] // ROWS, 2, 8, groups, per_tile, *rest)
    order = (0, 3, 2, 1, 4, *range(5, split.ndim))
    return np.ascontiguousarray(split.transpose(order)).view(np.uint8).reshape(-1)


def rows_of(plane: np.ndarray, dtype: type, n: int, groups: int, per_tile: int, *rest: int) -> np.ndarray:
    """The inverse of `row_scales`: [N, groups*per_tile, ...]."""
    split = plane.view(dtype).reshape(-(-n // ROWS), groups, 8, 2, per_tile, *rest)
    order = (0, 3, 2, 1, 4, *range(5, split.ndim))
    return split.transpose(order).reshape(-(-n // ROWS) * ROWS, groups * per_tile, *rest)[:n]


def pack_bits(codes: np.ndarray, width: int, words: int) -> np.ndarray:
    """Codes below 2^width, in fragments [tiles, 32, 4 s, 4 j, 2 e], as `words` u32 a lane: half e of a word
    holds codes (s, j) in order, `width` bits each; u8 [tiles, 32, 4*words]. `(word >> shift) & mask` is a
    pair e 0, 1.
    """
    a_word = 16 // words
    split = codes.reshape(codes.shape[0], 32, words, a_word, 2).astype(np.uint32)
    shifts = (np.arange(a_word) * width)[:, None] + np.array([0, 16])
    return np.bitwise_or.reduce(split << shifts.astype(np.uint32), axis=(3, 4)).view(np.uint8)


def unpack_bits(lanes: np.ndarray, width: int, words: int) -> np.ndarray:
    """The inverse of `pack_bits`: u8 [tiles, 32, 4 s, 4 j, 2 e]."""
    a_word = 16 // words
    split = np.ascontiguousarray(lanes).view(np.uint32).reshape(-1, 32, words, 1, 1)
    shifts = ((np.arange(a_word) * width)[:, None] + np.array([0, 16])).astype(np.uint32)
    return ((split >> shifts) & np.uint32((1 << width) - 1)).astype(np.uint8).reshape(-1, 32, 4, 4, 2)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """f32 -> the 16 bits of the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(
        np.uint16
    )


def bf16_values(bits: np.ndarray) -> np.ndarray:
    """The f32 values of bf16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
