"""Warpgroup matrix multiply (sm_90a): 64 weight rows from registers times a token tile in shared memory.

One group of four warps issues the k16 steps of one or two 64-k groups at once. The accumulators are one
register each, tied in and out of the statement, so Numba's register array costs no moves. Source of the
operand layouts: PTX ISA, "Asynchronous warpgroup level matrix instructions".
"""

import functools

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

# Shared-memory descriptor of a K-major bf16 tile with 128-byte rows in the 128-byte swizzle: leading offset 1
# (not used by this layout), stride 64 (8 rows of 128 bytes, in 16-byte units), swizzle mode 1.
DESCRIPTOR = (1 << 62) | (64 << 32) | (1 << 16)


@functools.cache
def multiply(tokens: int):
    """A device function (acc, a, first, descriptor): starts acc += A[64,64] B[tokens,64]^T.

    `acc`: register array of tokens/2 f32 (per 8 tokens the four values of an m16n8 tile), not to be read
    before `settle`; `a`: register array, 16 u32 (steps x fragment) from index `first`; `descriptor`: int64 of
    the token tile.
    """
    count = tokens // 2
    f32, i32, i64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
    accumulators = ",".join(f"${i}" for i in range(count))
    operand = 2 * count
    lines = ["{ .reg .pred p; .reg .b64 d; setp.ne.b32 p, 1, 0; wgmma.fence.sync.aligned;"]
    for step in range(4):
        a = ",".join(f"${operand + step * 4 + j}" for j in range(4))
        lines.append(f"add.s64 d, ${operand + 16}, {2 * step};")
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.bf16.bf16 "
            f"{{{accumulators}}}, {{{a}}}, d, p, 1, 1, 0;"
        )
    lines.append("wgmma.commit_group.sync.aligned; }")
    constraints = ["=f"] * count + [str(i) for i in range(count)] + ["r"] * 16 + ["l", "~{memory}"]
    result_type = ir.LiteralStructType([f32] * count)
    function_type = ir.FunctionType(result_type, [f32] * count + [i32] * 16 + [i64])

    def generate(context, builder, signature, values):
        acc, fragments = (_array(context, builder, signature, values, i) for i in range(2))
        places = [builder.gep(acc.data, [ir.Constant(i32, i)]) for i in range(count)]
        first = builder.trunc(values[2], i32)
        parts = [builder.gep(fragments.data, [builder.add(first, ir.Constant(i32, i))]) for i in range(16)]
        inputs = [builder.load(p) for p in places + parts]
        code = ir.InlineAsm(function_type, " ".join(lines), ",".join(constraints), side_effect=True)
        out = builder.call(code, [*inputs, values[3]], attrs=("convergent",))
        for i, place in enumerate(places):
            builder.store(builder.extract_value(out, i), place)
        return context.get_dummy_value()

    @intrinsic
    def wgmma(typingctx, acc, a, first, descriptor):
        return types.void(acc, a, types.int64, types.int64), generate

    return wgmma


@functools.cache
def settle(tokens: int):
    """A device function (acc): waits for all multiplies; the accumulators pass through the statement, so that
    nothing that reads them can move before it."""
    count = tokens // 2
    f32, i32 = ir.FloatType(), ir.IntType(32)
    constraints = ["=f"] * count + [str(i) for i in range(count)] + ["~{memory}"]
    function_type = ir.FunctionType(ir.LiteralStructType([f32] * count), [f32] * count)

    def generate(context, builder, signature, values):
        acc = _array(context, builder, signature, values, 0)
        places = [builder.gep(acc.data, [ir.Constant(i32, i)]) for i in range(count)]
        wait = "wgmma.wait_group.sync.aligned 0;"
        code = ir.InlineAsm(function_type, wait, ",".join(constraints), side_effect=True)
        out = builder.call(code, [builder.load(p) for p in places], attrs=("convergent",))
        for i, place in enumerate(places):
            builder.store(builder.extract_value(out, i), place)
        return context.get_dummy_value()

    @intrinsic
    def wgmma_settle(typingctx, acc):
        return types.void(acc), generate

    return wgmma_settle


def _array(context, builder, signature, values, i: int):
    return context.make_array(signature.args[i])(context, builder, value=values[i])
