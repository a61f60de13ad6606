"""The KV cache's memory: for each layer keys and values [P, G, 64, E], pages shared by all layers' page
table."""

from dataclasses import dataclass

from xinfer.device import Device
from xinfer.kv.pages import PAGE
from xinfer.spec import ModelSpec
from xinfer.tensor import DType, Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer, each [P, G, 64, E]."""

    keys: Tensor
    values: Tensor


def page_bytes(spec: ModelSpec, dtype: DType) -> int:
    """Bytes of one page (64 tokens) over all layers."""
    per_token = sum(2 * layer.attention.kv_heads * layer.attention.head_dim for layer in spec.layers)
    return PAGE * per_token * dtype.itemsize


class KVPool:
    """One allocation, zeroed: a masked key's probability is an exact 0, and 0 times what lies there must be
    0."""

    def __init__(self, device: Device, spec: ModelSpec, num_pages: int, dtype: DType) -> None:
        self.device, self.num_pages = device, num_pages
        self.memory = device.alloc(num_pages * page_bytes(spec, dtype), "the KV cache")
        device.zero(self.memory)
        self.layers: list[LayerCache] = []
        at = self.memory.ptr
        for layer in spec.layers:
            shape = (num_pages, layer.attention.kv_heads, PAGE, layer.attention.head_dim)
            keys = Tensor(at, shape, dtype, 0, self.memory.owner)
            values = Tensor(at + keys.nbytes, shape, dtype, 0, self.memory.owner)
            at += 2 * keys.nbytes
            self.layers.append(LayerCache(keys, values))

    def close(self) -> None:
        self.device.free(self.memory)
