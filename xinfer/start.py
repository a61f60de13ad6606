"""From an EngineConfig to a Model: resolve the name, open the files, check, plan, and load the weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xinfer.config import EngineConfig
from xinfer.device import Device, open_device
from xinfer.load import hub
from xinfer.load.checkpoint import open_checkpoint
from xinfer.load.loader import dummy_weights, load_weights, weight_bytes
from xinfer.models.rope import cos_sin_table
from xinfer.plan import Machine, Plan, plan, step_tokens
from xinfer.run.runner import planned_arena
from xinfer.spec import ModelSpec, Rope
from xinfer.tensor import DType, Tensor
from xinfer.text.chat import ChatTemplate
from xinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """Everything about a model that is fixed once it has been loaded."""

    device: Device
    spec: ModelSpec
    plan: Plan
    weights: Mapping
    tables: dict[Rope, Tensor]
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    stop_ids: tuple[int, ...]
