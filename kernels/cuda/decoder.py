"""What a weight format hands to the kernels: how a lane fetches its part of a tile, and what it means.

The layout behind it is fragment order (xinfer/formats/format.py). Codes become values without the slow
integer conversions: a code below 128 in the low bits of the bf16 pattern 0x4300 is the number 128 + code,
exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass

from numba import cuda, float32, int32, uint32

from .ptx import and_or, bf16_hi, bf16_lo, device, f16_hi_to_f32, f16_lo_to_f32, gather, pack_bf16x2, scatter

MAGIC = 0x43004300  # two bf16 of 128


@dataclass(frozen=True, slots=True)
class Decoder:
    """fetch(p0, p1, p2, p3, tile i64, lane i32) -> tuple of `raw` u32, loads only;
    unpack(raw, lane) -> tuple of 16 u32, bf16 pairs [step][register] of the A operand."""

    raw: int
    fetch: Callable
    unpack: Callable


def unpack_pairs(raw: int, scales: int, prepare: Callable, pair: Callable, value: Callable) -> Callable:
    """An unpack function of its parts.

    prepare(words, out): register array of raw words -> `scales` f32 into the array `out` pair(words, s, j):
    codes e = 0, 1 of register j of step s, at bits 0 and 16 (other bits anything but 7, 23) value(code + 128,
    scales, s, half): the f32 weight; half: row g (0) or g + 8 (1)
    """
    put, take = scatter(raw), gather(16)

    @device
    def unpack(registers, lane):
        words = cuda.local.array(raw, uint32)
        factors = cuda.local.array(scales, float32)
        out = cuda.local.array(16, uint32)
        put(words, 0, registers)
        prepare(words, factors)
        for s in range(4):
            for j in range(4):
                codes = pair(words, s, j)
                low = value(bf16_lo(codes), factors, s, j & 1)
                high = value(bf16_hi(codes), factors, s, j & 1)
                out[s * 4 + j] = pack_bf16x2(low, high)
        return take(out, 0)

    return unpack


def code_pair(first: int, width: int, a_word: int) -> Callable:
    """pair() for codes of `width` bits, `a_word` (s, j) codes in each half of a word (format.pack_bits), in
    the words from `first` on; as bf16 numbers 128 + code."""
    mask = ((1 << width) - 1) * 0x10001

    @device
    def pair(words, s, j):
        index = s * 4 + j
        word = words[first + index // a_word]
        shift = uint32((index % a_word) * width)
        return and_or(uint32(word >> shift), uint32(mask), uint32(MAGIC))

    return pair


@device
def high_bits(word, position, to, mask):
    """The bits at `position` of both halves of a word moved to bit `to`, masked."""
    if position >= to:
        return uint32(uint32(word >> uint32(position - to)) & uint32(mask))
    return uint32(uint32(word << uint32(to - position)) & uint32(mask))


@device
def f16_pairs(words, first, count, out):
    """`count` words of two f16 each into f32 out[0 .. 2*count]."""
    for i in range(count):
        out[2 * i] = f16_lo_to_f32(words[first + i])
        out[2 * i + 1] = f16_hi_to_f32(words[first + i])


@device
def signed_byte(word, i):
    """Byte i of a word as a signed number, i32."""
    return int32(int32(uint32(word << uint32(24 - 8 * i))) >> int32(24))
