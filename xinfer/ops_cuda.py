"""The operations of kernels/contract.py on a GPU: launchers of kernels/cuda bound to one device and its
stream."""

from xinfer.device import Device
from xinfer.errors import UnsupportedError
from xinfer.formats.weight import Weight
from xinfer.kernels.cuda import attention, embed, linear, norm, penalize, rope, sample
from xinfer.spec import ModelSpec
from xinfer.tensor import DType, Tensor


class CudaOps:
    """`act`: bf16, or f32 for the mode that checks and tiny models run in."""

    def __init__(self, device: Device, act: DType) -> None:
        self.device, self.act, self.library = device, act, device.library
        self.scratch: list[Tensor] = []

    def reserve(self, spec: ModelSpec, max_seqs: int, num_pages: int, weights: list[Weight]) -> None:
        """Build and load every kernel the model needs, in parallel where they are not cached."""
        tag = self.act.tag
        self._check(spec)
        heads, dim = max((a.heads, a.head_dim) for a in (layer.attention for layer in spec.layers))
        states = attention.scratch_bytes(num_pages, heads, dim) if self.act is DType.BF16 else 256
        choices = sample.Sample.scratch_bytes(max_seqs, spec.vocab)
        self.scratch = [self.device.alloc(states, "attention states"), self.device.alloc(choices, "sampling")]
        self.library.prepare(self._specs(spec, weights))
        self._embed, self._linear = (
            embed.Embed(self.library),
            linear.Linear(self.library, self.device.processors),
        )
        self._rmsnorm = norm.RmsNorm(self.library, tag)
        self._rmsnorm_rows = norm.RmsNormRows(self.library, tag)
        self._rmsnorm_add = norm.RmsNormAdd(self.library)
        self._rope_kv = rope.RopeKv(self.library, tag)
        self._attention = attention.Attention(self.library, tag, self.scratch[0].ptr)
        self._penalize, self._sample = penalize.Penalize(self.library), sample.Sample(self.library)

    def _check(self, spec: ModelSpec) -> None:
        """Matmul kernels take K in groups of 64; f32 takes any multiple of 4."""
        unit = 64 if self.act is DType.BF16 else 4
        for layer in spec.layers:
            sizes = {
                "hidden size": spec.dim,
                "heads times head size": layer.attention.heads * layer.attention.head_dim,
            }
            for what, size in sizes.items():
                if size % unit:
                    raise UnsupportedError(
                        f"{what} {size} is no multiple of {unit}: use dtype f32, or the CPU"
                    )
            if self.act is DType.BF16 and layer.attention.head_dim % 16:
                raise UnsupportedError(
                    f"head size {layer.attention.head_dim} is no multiple of 16: use dtype f32"
                )

    def _specs(self, spec: ModelSpec, weights: list[Weight]) -> list:
        tag, sm = self.act.tag, self.library.sm
        found = [
            *norm.RmsNorm.specs(tag),
            *norm.RmsNormRows.specs(tag),
            *sample.Sample.specs(),
            *penalize.Penalize.specs(),
        ]
        if any(layer.wiring == "sandwich" for layer in spec.layers):
            found += norm.RmsNormAdd.specs()
        for layer in spec.layers:
            dim = layer.attention.head_dim
            found += [rope.spec(dim, tag), *attention.Attention.specs(dim, tag, sm)]
        if self.act is DType.F32:
            found += [linear.linear_f32.spec(gated) for gated in (False, True)] + [embed.dense_spec()]
        else:
            for weight in {w.format.kernel_name: w for w in weights}.values():
                source, name = weight.format.decoder, weight.format.kernel_name
                found += linear.specs(source, name, sm) + embed.Embed.specs(source, name)
        return list(dict.fromkeys(found))

    def embed(self, out, tokens, last, rows, table, scale) -> None:
        self._embed(self.device.stream, out, tokens, last, rows, table, scale)

    def rmsnorm(self, out, x, weight, eps) -> None:
        self._rmsnorm(self.device.stream, out, x, weight, eps)

    def rmsnorm_rows(self, out, x, rows, weight, eps) -> None:
        self._rmsnorm_rows(self.device.stream, out, x, rows, weight, eps)

    def rmsnorm_add(self, h, x, weight, eps) -> None:
        self._rmsnorm_add(self.device.stream, h, x, weight, eps)

    def linear(self, out, x, weight, bias=None, add=False) -> None:
        self._linear(self.device.stream, out, x, weight, bias, add=add)

    def linear_glu(self, out, x, weight, act) -> None:
        self._linear.glu(self.device.stream, out, x, weight, act)

    def rope_kv(self, q, k_cache, v_cache, qkv, cos_sin, positions, kv_slots, q_norm, k_norm, eps) -> None:
        self._rope_kv(
            self.device.stream, q, k_cache, v_cache, qkv, cos_sin, positions, kv_slots, q_norm, k_norm, eps
        )

    def attention(self, out, q, k_cache, v_cache, page_table, q_start, kv_len, scale, window) -> None:
        self._attention(
            self.device.stream, out, q, k_cache, v_cache, page_table, q_start, kv_len, scale, window
        )

    def penalize(self, logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values) -> None:
        self._penalize(
            self.device.stream, logits, counts, rows, repetition, frequency, presence, bias_ids, bias_values
        )

    def sample(
        self, tokens, last, counts, logits, rows, temperature, top_p, min_p, top_k, seeds, steps
    ) -> None:
        self._sample(
            self.device.stream, tokens, last, counts, logits, rows, temperature, top_p, min_p, top_k, seeds,
            steps, self.scratch[1].ptr,
        )  # fmt: skip

    def close(self) -> None:
        for part in self.scratch:
            self.device.free(part)
