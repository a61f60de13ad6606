"""Warpgroup matrix multiply (sm_90a): 64 weight rows from registers times a token tile in shared memory.

One group of four warps issues the four k16 steps of a 64-k group at once. The accumulators are one register each,
tied in and out of the statement, so Numba's register array costs no moves.
Source of the operand layouts: PTX ISA, "Asynchronous warpgroup level matrix instructions".
"""

import functools

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from .ptx import instruction

# Shared-memory descriptor of a K-major bf16 tile with 128-byte rows in the 128-byte swizzle: leading offset 1 (not
# used by this layout), stride 64 (8 rows of 128 bytes, in 16-byte units), swizzle mode 1.
DESCRIPTOR = (1 << 62) | (64 << 32) | (1 << 16)

wait_all = instruction("wgmma.wait_group.sync.aligned 0;", "", "", memory=True)


@functools.cache
def multiply(tokens: int):
    """A device function (acc, a, descriptor): acc += A[64,64] B[tokens,64]^T, waits for the result.

    `acc`: register array of tokens/2 f32 (per 8 tokens the four values of an m16n8 tile); `a`: register array of
    16 u32 (steps x fragment); `descriptor`: int64 of the token tile.
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
    lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }")
    constraints = ["=f"] * count + [str(i) for i in range(count)] + ["r"] * 16 + ["l", "~{memory}"]
    result_type = ir.LiteralStructType([f32] * count)
    function_type = ir.FunctionType(result_type, [f32] * count + [i32] * 16 + [i64])

    def generate(context, builder, signature, values):
        acc, fragments = (
            context.make_array(signature.args[i])(context, builder, value=values[i]) for i in range(2)
        )

        def slots(array, number):
            return [builder.gep(array.data, [ir.Constant(i32, i)]) for i in range(number)]

        places = slots(acc, count)
        inputs = [builder.load(p) for p in places] + [builder.load(p) for p in slots(fragments, 16)]
        code = ir.InlineAsm(function_type, " ".join(lines), ",".join(constraints), side_effect=True)
        out = builder.call(code, [*inputs, values[2]], attrs=("convergent",))
        for i, place in enumerate(places):
            builder.store(builder.extract_value(out, i), place)
        return context.get_dummy_value()

    @intrinsic
    def wgmma(typingctx, acc, a, descriptor):
        return types.void(acc, a, types.int64), generate

    return wgmma
