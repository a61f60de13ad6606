"""Every operation: its name, its parameters in order (outputs first), their shapes, and what it means.

Letters: T tokens of the step, B sequences or logit rows, S rows of per-request state, D model dim, H query
heads, G kv heads, E head dim, R rotary dims, N x K a weight, I ffn width, P pages, M pages a sequence, V
vocabulary. "act" is f32 on the CPU and in f32 mode, bf16 otherwise. A Weight is the caller's object with .n,
.k and its bytes. Backends (kernels/ref in NumPy, xinfer/ops.py on the CPU, xinfer/ops_cuda.py) have a method
of each name with these parameters.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Op:
    """`parameters`: "name:shape:type" each; a type in brackets may be None; ! marks what is written."""

    name: str
    parameters: tuple[str, ...]
    meaning: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.split(":")[0].removeprefix("!") for p in self.parameters)


def _op(name: str, parameters: str, meaning: str) -> Op:
    return Op(name, tuple(parameters.split()), meaning)


OPS = (
    _op(
        "embed",
        "!out:T,D:f32 tokens:T:i32 last:S:i32 rows:T:i32 table:V,D:weight scale::f32",
        "out[i] = scale * table[id]; id = tokens[i], or last[rows[i]] where that is -1; zeros where it is -2",
    ),
    _op(
        "rmsnorm",
        "!out:T,D:act x:T,D:f32 weight:D:f32 eps::f32",
        "x / sqrt(mean(x^2) + eps) * weight in f32, rounded once",
    ),
    _op(
        "rmsnorm_rows",
        "!out:B,D:act x:T,D:f32 rows:B:i32 weight:D:f32 eps::f32",
        "rmsnorm of x[rows[i]]; zeros where rows[i] is negative",
    ),
    _op("rmsnorm_add", "!h:T,D:f32 x:T,D:f32 weight:D:f32 eps::f32", "h += rmsnorm(x), in f32"),
    _op(
        "linear",
        "!out:T,N:f32 x:T,K:act weight:N,K:weight bias:N:[f32] add::bool",
        "out = x W^T + bias, or added to out; rows of out may lie further apart than N",
    ),
    _op(
        "linear_glu",
        "!out:T,I:act x:T,K:act weight:2I,K:weight act::str",
        "act(gate) * up in f32, rounded once; gate and up rows interleaved by 8; act silu or gelu_tanh",
    ),
    _op(
        "rope_kv",
        "!q:T,H,E:act !k_cache:P,G,64,E:act !v_cache:P,G,64,E:act qkv:T,(H+2G)E:f32 cos_sin:M,R:f32 "
        "positions:T:i32 kv_slots:T:i32 q_norm:E:[f32] k_norm:E:[f32] eps::f32",
        "q and k heads normed if there are weights, pairs (x_i, x_{i+R/2}) rotated; k, v to slot % 64 "
        "of page slot / 64",
    ),
    _op(
        "attention",
        "!out:T,HE:act q:T,H,E:act k_cache:P,G,64,E:act v_cache:P,G,64,E:act page_table:B,M:i32 "
        "q_start:B+1:i32 kv_len:B:i32 scale::f32 window::i32",
        "causal attention over each sequence's pages (see ref/attention.py); zeros where kv_len is 0",
    ),
    _op(
        "penalize",
        "!logits:B,V:f32 counts:S,V:u16 rows:B:i32 repetition:B:f32 frequency:B:f32 presence:B:f32 "
        "bias_ids:S,NB:i32 bias_values:S,NB:f32",
        "repetition on tokens seen, frequency and presence on those generated, then biases (ref/sample.py)",
    ),
    _op(
        "sample",
        "!tokens:B:i32 !last:S:i32 !counts:S,V:u16 logits:B,V:f32 rows:B:i32 temperature:B:f32 top_p:B:f32 "
        "min_p:B:f32 top_k:B:i32 seeds:B:u64 steps:B:i32",
        "a token for each row (see ref/sample.py), also to last[row] and counted",
    ),
)
