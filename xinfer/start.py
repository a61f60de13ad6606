"""From an EngineConfig to a Model: resolve the name, open the files, check, plan, and load the weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from xinfer import env
from xinfer.config import EngineConfig
from xinfer.device import Device, open_device
from xinfer.load import hub
from xinfer.load.checkpoint import Checkpoint, open_checkpoint
from xinfer.load.loader import dummy_weights, load_weights, weight_bytes
from xinfer.models.rope import cos_sin_table
from xinfer.plan import Machine, Plan, plan, step_tokens
from xinfer.run.runner import planned_arena
from xinfer.spec import ModelSpec, Rope
from xinfer.tensor import DType, Tensor
from xinfer.text.chat import ChatTemplate
from xinfer.text.tokenizer import Tokenizer
from xinfer.text.vocabulary import nameless

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Model:
    """Everything about a model that is fixed once it has been loaded. `tables`: cos and sin of each Rope."""

    device: Device
    spec: ModelSpec
    plan: Plan
    weights: Mapping
    tables: dict[Rope, Tensor]
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    stop_ids: tuple[int, ...]


def start(config: EngineConfig, progress: Progress | None = None) -> Model:
    """Everything that can be refused is refused before weights are read; a failure later gives the device
    back."""
    env.load()
    dummy = config.load_format == "dummy"
    checkpoint = open_checkpoint(hub.resolve(config.m, weights=not dummy), weights=not dummy)
    tokenizer, template = _text(checkpoint, config.skip_tokenizer or dummy)
    device = open_device(config.device)
    try:
        act = _act(config, checkpoint, device.kind)
        chosen = _plan(config, checkpoint, device, act, dummy)
        tables = _tables(device, checkpoint.spec, chosen.max_model_len)
        if dummy:
            weights = dummy_weights(checkpoint.spec, device, act)
        else:
            weights = load_weights(checkpoint, device, act, progress)
    except BaseException:
        device.close()
        raise
    stops = tuple(sorted({*tokenizer.eos_ids, *checkpoint.spec.stop_ids}))
    return Model(device, checkpoint.spec, chosen, weights, tables, tokenizer, template, stops)


def _act(config: EngineConfig, checkpoint: Checkpoint, kind: str) -> DType:
    """f32 on the CPU, for f32 files and when asked; bf16 otherwise."""
    if config.dtype == "auto":
        return DType.F32 if kind == "cpu" or checkpoint.stored_f32 else DType.BF16
    return DType.F32 if config.dtype == "f32" else DType.BF16


def _plan(config: EngineConfig, checkpoint: Checkpoint, device: Device, act: DType, dummy: bool) -> Plan:
    spec = checkpoint.spec
    arena = planned_arena(spec, act, step_tokens(config, device.kind), config.max_num_seqs)
    weights = weight_bytes(spec if dummy else checkpoint, device.kind, act)
    machine = Machine(device.kind, device.free_bytes)
    return plan(spec, config, machine, act, weights, arena.nbytes)


def _tables(device: Device, spec: ModelSpec, max_len: int) -> dict[Rope, Tensor]:
    """cos and sin of all positions, f32 [max_len, R], for each distinct Rope of the model."""
    tables = {}
    for rope in dict.fromkeys(layer.attention.rope for layer in spec.layers):
        table = np.ascontiguousarray(cos_sin_table(rope, max_len), np.float32)
        tensor = device.alloc(table.nbytes, "RoPE table").view(table.shape, DType.F32)
        device.upload(tensor, table)
        tables[rope] = tensor
    return tables


def _text(checkpoint: Checkpoint, skip: bool) -> tuple[Tokenizer, ChatTemplate]:
    """Tokenizer and chat template of a checkpoint; with `skip`, those of a model that speaks token ids
    only."""
    if skip:
        return Tokenizer(nameless(checkpoint.spec.vocab)), ChatTemplate(None)
    if checkpoint.gguf_metadata is not None:
        tokenizer = Tokenizer.from_gguf(checkpoint.gguf_metadata)
        return tokenizer, ChatTemplate.from_gguf(checkpoint.gguf_metadata, tokenizer.special_names)
    tokenizer = Tokenizer.from_hf_folder(checkpoint.folder)
    return tokenizer, ChatTemplate.from_hf_folder(checkpoint.folder, tokenizer.special_names)
