"""PTX instructions as functions for kernels: memory with cache hints, tensor cores, conversions, exact
arithmetic.

Addresses are int64 (numba turns uint64 + int64 into float64); shared-memory addresses are int32 offsets in
the shared window. Registers that hold packed halves are uint32. Every function here is one instruction, or
two. Use them inside `@device` functions and kernels; numba promotes int32 + int32 to int64 and uint32 <<
uint32 to uint64, so intermediate values are cast by the caller.
"""

import functools

from llvmlite import ir
from numba import cuda, types
from numba.cuda.extending import intrinsic

_LLVM = {
    "i32": ir.IntType(32), "u32": ir.IntType(32), "i64": ir.IntType(64), "u64": ir.IntType(64),
    "u16": ir.IntType(16), "f32": ir.FloatType(),
}  # fmt: skip
_NUMBA = {
    "i32": types.int32, "u32": types.uint32, "i64": types.int64, "u64": types.uint64,
    "u16": types.uint16, "f32": types.float32,
}  # fmt: skip
_CONSTRAINT = {"i32": "r", "u32": "r", "i64": "l", "u64": "l", "u16": "h", "f32": "f"}
# A warp collective must not be moved into or duplicated over divergent branches.
_COLLECTIVE = ("mma", "shfl", "bar", "ldmatrix", "wgmma", "vote")


def device(function):
    """A device function that is always inlined. `forceinline` compiles in a second where `inline="always"`,
    which inlines in Numba's own IR, took nineteen for the same machine code."""
    return cuda.jit(device=True, forceinline=True)(function)


def instruction(asm: str, result: str, arguments: str, *, pure: bool = False, memory: bool = False):
    """A callable for one PTX statement.

    `result` is "" or a type ("f32") or a type and a count ("u32 4"); `arguments` are types separated by
    blanks. `pure`: same inputs, same outputs, may be moved or merged. `memory`: touches memory, keeps its
    place.
    """
    args = arguments.split()
    kind, count = [*result.split(), "1"][:2] if result else ("", "0")
    count = int(count)
    outputs = ["=" + _CONSTRAINT[kind]] * count if count else []
    constraints = outputs + [_CONSTRAINT[a] for a in args]
    constraints = ",".join(constraints + (["~{memory}"] if memory else []))
    if not count:
        llvm_result, numba_result = ir.VoidType(), types.void
    elif count == 1:
        llvm_result, numba_result = _LLVM[kind], _NUMBA[kind]
    else:
        llvm_result = ir.LiteralStructType([_LLVM[kind]] * count)
        numba_result = types.UniTuple(_NUMBA[kind], count)
    function_type = ir.FunctionType(llvm_result, [_LLVM[a] for a in args])
    signature = numba_result(*[_NUMBA[a] for a in args])
    attributes = ("convergent",) if asm.lstrip("{ ").startswith(_COLLECTIVE) else ()

    def generate(context, builder, sig, values):
        code = ir.InlineAsm(function_type, asm, constraints, side_effect=not pure)
        out = builder.call(code, list(values), attrs=attributes)
        if not count:
            return context.get_dummy_value()
        if count == 1:
            return out
        parts = [builder.extract_value(out, i) for i in range(count)]
        return context.make_tuple(builder, sig.return_type, parts)

    return _intrinsic(signature, generate, len(args))


def _intrinsic(signature, generate, arity: int):
    """Numba reads an intrinsic's arity from its Python signature, so there is one lambda per arity."""
    typers = {
        0: lambda t: (signature, generate),
        1: lambda t, a: (signature, generate),
        2: lambda t, a, b: (signature, generate),
        3: lambda t, a, b, c: (signature, generate),
        4: lambda t, a, b, c, d: (signature, generate),
        5: lambda t, a, b, c, d, e: (signature, generate),
        6: lambda t, a, b, c, d, e, f: (signature, generate),
        10: lambda t, a, b, c, d, e, f, g, h, i, j: (signature, generate),
    }
    return intrinsic(typers[arity])


def _bitcast(result: str, argument: str):
    def generate(context, builder, sig, values):
        return builder.bitcast(values[0], _LLVM[result])

    return _intrinsic(_NUMBA[result](_NUMBA[argument]), generate, 1)


# Global memory. `nc` loads go through the read-only path and must not see data written by the same kernel;
# `stream` loads do not stay in L1 (weights, read once).
ld_nc128 = instruction("ld.global.nc.v4.u32 {$0,$1,$2,$3}, [$4];", "u32 4", "i64", pure=True)
ld_nc64 = instruction("ld.global.nc.v2.u32 {$0,$1}, [$2];", "u32 2", "i64", pure=True)
ld_nc32 = instruction("ld.global.nc.u32 $0, [$1];", "u32", "i64", pure=True)
ld_nc16 = instruction("ld.global.nc.u16 $0, [$1];", "u16", "i64", pure=True)
ld_stream128 = instruction(
    "ld.global.nc.L1::no_allocate.v4.u32 {$0,$1,$2,$3}, [$4];", "u32 4", "i64", pure=True
)
ld_stream64 = instruction("ld.global.nc.L1::no_allocate.v2.u32 {$0,$1}, [$2];", "u32 2", "i64", pure=True)
ld_stream32 = instruction("ld.global.nc.L1::no_allocate.u32 $0, [$1];", "u32", "i64", pure=True)
ld128 = instruction("ld.global.v4.u32 {$0,$1,$2,$3}, [$4];", "u32 4", "i64", memory=True)
ld64 = instruction("ld.global.v2.u32 {$0,$1}, [$2];", "u32 2", "i64", memory=True)
ld32 = instruction("ld.global.u32 $0, [$1];", "u32", "i64", memory=True)
ld_i32 = instruction("ld.global.s32 $0, [$1];", "i32", "i64", memory=True)
ld_u16 = instruction("ld.global.u16 $0, [$1];", "u16", "i64", memory=True)
ld_u64 = instruction("ld.global.u64 $0, [$1];", "u64", "i64", memory=True)
ld_f32 = instruction("ld.global.f32 $0, [$1];", "f32", "i64", memory=True)
ld_nc_f32 = instruction("ld.global.nc.f32 $0, [$1];", "f32", "i64", pure=True)
ld_nc_f32x4 = instruction("ld.global.nc.v4.f32 {$0,$1,$2,$3}, [$4];", "f32 4", "i64", pure=True)
ld_f32x4 = instruction("ld.global.v4.f32 {$0,$1,$2,$3}, [$4];", "f32 4", "i64", memory=True)
ld_nc_i32 = instruction("ld.global.nc.s32 $0, [$1];", "i32", "i64", pure=True)
st128 = instruction("st.global.v4.u32 [$0], {$1,$2,$3,$4};", "", "i64 u32 u32 u32 u32", memory=True)
st64 = instruction("st.global.v2.u32 [$0], {$1,$2};", "", "i64 u32 u32", memory=True)
st32 = instruction("st.global.u32 [$0], $1;", "", "i64 u32", memory=True)
st_u16 = instruction("st.global.u16 [$0], $1;", "", "i64 u16", memory=True)
st_i32 = instruction("st.global.s32 [$0], $1;", "", "i64 i32", memory=True)
st_f32 = instruction("st.global.f32 [$0], $1;", "", "i64 f32", memory=True)
st_f32x4 = instruction("st.global.v4.f32 [$0], {$1,$2,$3,$4};", "", "i64 f32 f32 f32 f32", memory=True)

# Shared memory, addressed by int32 offsets from dynamic_shared().
lds128 = instruction("ld.shared.v4.u32 {$0,$1,$2,$3}, [$4];", "u32 4", "i32", memory=True)
lds32 = instruction("ld.shared.u32 $0, [$1];", "u32", "i32", memory=True)
lds_f32 = instruction("ld.shared.f32 $0, [$1];", "f32", "i32", memory=True)
sts128 = instruction("st.shared.v4.u32 [$0], {$1,$2,$3,$4};", "", "i32 u32 u32 u32 u32", memory=True)
sts64 = instruction("st.shared.v2.u32 [$0], {$1,$2};", "", "i32 u32 u32", memory=True)
sts32 = instruction("st.shared.u32 [$0], $1;", "", "i32 u32", memory=True)
sts_f32 = instruction("st.shared.f32 [$0], $1;", "", "i32 f32", memory=True)
# 16 bytes from global to shared memory, zero-filled when `bytes` is 0 (cp.async's src-size).
cp_async16 = instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", "", "i32 i64 i32", memory=True)
cp_async_commit = instruction("cp.async.commit_group;", "", "", memory=True)
cp_async_wait0 = instruction("cp.async.wait_group 0;", "", "", memory=True)
cp_async_wait1 = instruction("cp.async.wait_group 1;", "", "", memory=True)
cp_async_wait2 = instruction("cp.async.wait_group 2;", "", "", memory=True)
ldmatrix4 = instruction(
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];", "u32 4", "i32", memory=True
)
ldmatrix4_trans = instruction(
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];", "u32 4", "i32", memory=True
)
fence_async_proxy = instruction("fence.proxy.async.shared::cta;", "", "", memory=True)
barrier = instruction("bar.sync 0;", "", "", memory=True)
warp_barrier = instruction("bar.warp.sync -1;", "", "", memory=True)

# Warp exchange.
shuffle_xor = instruction("shfl.sync.bfly.b32 $0, $1, $2, 31, -1;", "f32", "f32 i32", memory=True)
shuffle_xor_u32 = instruction("shfl.sync.bfly.b32 $0, $1, $2, 31, -1;", "u32", "u32 i32", memory=True)
shuffle_xor_i32 = instruction("shfl.sync.bfly.b32 $0, $1, $2, 31, -1;", "i32", "i32 i32", memory=True)

# D[16,8] += A[16,16] B[16,8]: a0..a3, b0..b1 packed bf16 pairs, c0..c3 f32.
mma_bf16 = instruction(
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};",
    "f32 4", "u32 u32 u32 u32 u32 u32 f32 f32 f32 f32", pure=True,
)  # fmt: skip

# Bits and bytes.
f32_of_bits = _bitcast("f32", "u32")
bits_of_f32 = _bitcast("u32", "f32")
prmt = instruction("prmt.b32 $0, $1, $2, $3;", "u32", "u32 u32 u32", pure=True)
and_or = instruction("lop3.b32 $0, $1, $2, $3, 0xea;", "u32", "u32 u32 u32", pure=True)  # (a & b) | c
and_xor = instruction("lop3.b32 $0, $1, $2, $3, 0x6a;", "u32", "u32 u32 u32", pure=True)  # (a & b) ^ c

# Conversions; "lo" is the half in the low 16 bits.
pack_bf16x2 = instruction("cvt.rn.bf16x2.f32 $0, $2, $1;", "u32", "f32 f32", pure=True)  # (lo, hi)
pack_f16x2 = instruction("cvt.rn.f16x2.f32 $0, $2, $1;", "u32", "f32 f32", pure=True)
f16_lo_to_f32 = instruction(
    "{ .reg .b16 l,h; mov.b32 {l,h}, $1; cvt.f32.f16 $0, l; }", "f32", "u32", pure=True
)
f16_hi_to_f32 = instruction(
    "{ .reg .b16 l,h; mov.b32 {l,h}, $1; cvt.f32.f16 $0, h; }", "f32", "u32", pure=True
)

# Exact arithmetic: these are never contracted or reassociated, whatever the compiler's flags.
mul_rn = instruction("mul.rn.f32 $0, $1, $2;", "f32", "f32 f32", pure=True)
add_rn = instruction("add.rn.f32 $0, $1, $2;", "f32", "f32 f32", pure=True)
sub_rn = instruction("sub.rn.f32 $0, $1, $2;", "f32", "f32 f32", pure=True)
fma_rn = instruction("fma.rn.f32 $0, $1, $2, $3;", "f32", "f32 f32 f32", pure=True)
div_rn = instruction("div.rn.f32 $0, $1, $2;", "f32", "f32 f32", pure=True)
sqrt_rn = instruction("sqrt.rn.f32 $0, $1;", "f32", "f32", pure=True)
ex2 = instruction("ex2.approx.ftz.f32 $0, $1;", "f32", "f32", pure=True)
rcp = instruction("rcp.approx.ftz.f32 $0, $1;", "f32", "f32", pure=True)
mul_hi_u32 = instruction("mul.hi.u32 $0, $1, $2;", "u32", "u32 u32", pure=True)

# Programmatic dependent launch (sm_90 and later; builds for older targets leave both out): let the next
# kernel start as far as its own grid_wait, which returns when all earlier kernels are done and their writes
# visible.
grid_wait = instruction("griddepcontrol.wait;", "", "", memory=True)
launch_dependents = instruction("griddepcontrol.launch_dependents;", "", "", memory=True)


def _dynamic_shared(typingctx):
    def generate(context, builder, sig, values):
        module, name = builder.module, "dynamic_shared_memory"
        array = module.globals.get(name)
        if array is None:
            array = ir.GlobalVariable(module, ir.ArrayType(ir.IntType(8), 0), name, addrspace=3)
            array.linkage, array.align = "external", 128
        return builder.trunc(builder.ptrtoint(array, ir.IntType(64)), ir.IntType(32))

    return types.int32(), generate


dynamic_shared = intrinsic(_dynamic_shared)


@device
def bf16_lo(u):
    """f32 value of the low bf16 of a packed pair."""
    return f32_of_bits(types.uint32(u << types.uint32(16)))


@device
def bf16_hi(u):
    """f32 value of the high bf16 of a packed pair."""
    return f32_of_bits(types.uint32(u & types.uint32(0xFFFF0000)))


@functools.cache
def gather(count: int):
    """A device function (array, start) -> tuple of `count` consecutive elements of a register array. Tuples
    and register arrays meet only through constant indices, so the text is written out once per length."""
    elements = ", ".join(f"array[start + {i}]" for i in range(count))
    scope: dict = {}
    exec(f"def gather_{count}(array, start):\n    return ({elements},)\n", scope)
    return device(scope[f"gather_{count}"])


@functools.cache
def scatter(count: int):
    """A device function (array, start, tuple): the tuple's `count` elements into consecutive ones of the
    array."""
    lines = "".join(f"    array[start + {i}] = values[{i}]\n" for i in range(count))
    scope: dict = {}
    exec(f"def scatter_{count}(array, start, values):\n{lines}", scope)
    return device(scope[f"scatter_{count}"])
