"""A model on disk, opened and checked: its spec, and its tensors by canonical name. Nothing big is read."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from xinfer.errors import CheckpointError, UnsupportedError
from xinfer.models import architecture
from xinfer.spec import Cfg, ModelSpec, tensor_shapes

from . import names
from .gguf import GgufFile
from .raw import Raw
from .safetensors import read_folder

_LISTED = 4  # names an error shows


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """`tensors`: canonical name (spec.tensor_shapes) -> Raw, empty when opened without weights. The tokenizer
    comes from `gguf_metadata` (then `folder` is None) or from the files in `folder`.

    `pair_rows`: q and k rows are in pair order and wait for names.pair_to_half. `stored_f32`: no matrix is
    narrower than f32."""

    path: Path
    spec: ModelSpec
    tensors: dict[str, Raw]
    gguf_metadata: dict[str, object] | None
    folder: Path | None
    pair_rows: bool
    stored_f32: bool


def open_checkpoint(path: str | Path, *, weights: bool = True) -> Checkpoint:
    """Open a .gguf file or a folder of safetensors. Without `weights` a folder needs only its config.json.

    Raises CheckpointError when files are missing or damaged, tensors are missing or of another shape than the
    configuration says; UnsupportedError for what this version cannot run, tensors without a use included."""
    path = Path(path)
    if path.is_dir():
        return _open_folder(path, weights)
    if path.suffix == ".gguf" or path.is_file():
        return _open_gguf(path)
    raise CheckpointError(f"no file or folder {path}: check the path")


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufFile(path)
    config = names.hf_config(file.metadata, file.tensors, str(path))
    cfg = Cfg(config, str(path))
    spec = architecture(cfg).spec(cfg)
    tensors = _canonical(spec, file.tensors, names.GGUF_NAMES, names.IGNORED, str(path))
    pair_rows = file.metadata["general.architecture"] in names.PERMUTED
    return Checkpoint(path, spec, tensors, file.metadata, None, pair_rows, _stored_f32(tensors))


def _open_folder(folder: Path, weights: bool) -> Checkpoint:
    config = read_json(folder / "config.json")
    if config is None:
        raise CheckpointError(f"{folder} has no config.json: it is not a model folder, or not complete")
    cfg = Cfg(config, str(folder / "config.json"))
    quantization = cfg.section("quantization_config")
    if quantization.values:
        method = quantization.values.get("quant_method")
        raise UnsupportedError(
            f"{cfg.where}: weights quantised by {method!r} are not supported: use unquantised ones or GGUF"
        )
    kind = architecture(cfg)
    spec = kind.spec(cfg)
    generation = folder / "generation_config.json"
    stops = {*spec.stop_ids, *Cfg(read_json(generation) or {}, str(generation)).ids("eos_token_id")}
    spec = replace(spec, stop_ids=tuple(sorted(stops)))
    if not weights:
        f32 = config.get("dtype", config.get("torch_dtype")) == "float32"
        return Checkpoint(folder, spec, {}, None, folder, False, f32)
    ignored = (*kind.ignore, kind.names["head"]) if spec.tied else kind.ignore
    tensors = _canonical(spec, read_folder(folder), kind.names, ignored, str(folder))
    return Checkpoint(folder, spec, tensors, None, folder, False, _stored_f32(tensors))


def read_json(path: Path) -> dict | None:
    """The object in a JSON file, None when there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): check its rights") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not an object: fetch it again")
    return value


def file_name(canonical: str, patterns: Mapping[str, str]) -> str:
    """The name in the file of "embed" or "layers.3.q"; itself where no pattern knows it."""
    *layer, short = canonical.split(".")
    pattern = patterns.get(short, canonical)
    return pattern.format(i=layer[1]) if layer else pattern


def _canonical(
    spec: ModelSpec,
    tensors: Mapping[str, Raw],
    patterns: Mapping[str, str],
    ignored: Iterable[str],
    where: str,
) -> dict[str, Raw]:
    """The tensors by canonical name: nothing missing, nothing left over, every shape as the spec has it."""
    shapes = tensor_shapes(spec)
    files = {canonical: file_name(canonical, patterns) for canonical in shapes}
    if missing := [name for name in files.values() if name not in tensors]:
        raise CheckpointError(f"{where} lacks {_listed(missing)}: fetch the complete model")
    left = sorted(tensors.keys() - set(files.values()))
    if left := [name for name in left if not any(fnmatch(name, pattern) for pattern in ignored)]:
        raise UnsupportedError(
            f"{where} has {_listed(left)}; {spec.arch} has no use for them: it is another architecture"
        )
    wrong = [
        f"{name} {list(tensors[name].shape)} (wanted {list(shapes[canonical])})"
        for canonical, name in files.items()
        if tensors[name].shape != shapes[canonical]
    ]
    if wrong:
        raise CheckpointError(f"{where} contradicts its configuration in {_listed(wrong)}: fetch it again")
    return {canonical: tensors[name] for canonical, name in files.items()}


def _listed(names_: list[str]) -> str:
    """ "3 tensors: a, b, c", a few of them when they are many."""
    more = ", ..." if len(names_) > _LISTED else ""
    return f"{len(names_)} tensor{'s' * (len(names_) > 1)}: {', '.join(names_[:_LISTED])}{more}"


def _stored_f32(tensors: Mapping[str, Raw]) -> bool:
    return all(raw.dtype == "F32" for raw in tensors.values() if len(raw.shape) > 1)
