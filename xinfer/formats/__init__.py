"""Weight formats, one file each. FORMATS names them all."""

from .bf16 import BF16
from .f16 import F16
from .f32 import F32
from .format import Format
from .q4_0 import Q4_0
from .q4_1 import Q4_1
from .q4_k import Q4_K
from .q5_0 import Q5_0
from .q6_k import Q6_K
from .q8_0 import Q8_0

FORMATS: dict[str, Format] = {f.name: f for f in (BF16, F16, F32, Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q6_K)}


def by_ggml_type(number: int) -> Format | None:
    """The format of a tensor type of GGUF, or None."""
    return next((f for f in FORMATS.values() if f.ggml_type == number), None)


def by_safetensors(dtype: str) -> Format | None:
    """The format of a dtype of safetensors ("BF16"), or None."""
    return next((f for f in FORMATS.values() if f.safetensors == dtype), None)
