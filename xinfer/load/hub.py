"""From what a user calls a model to files on this machine: a path, or a Hugging Face id that is fetched.

Fetched files lie in the cache of huggingface_hub, where other programs find them, too (HF_HOME moves it).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, list_repo_files, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from xinfer.errors import CheckpointError, ConfigError

SMALL_FILES = ("*.json", "*.jinja", "tokenizer*", "*.txt")  # configuration and tokenizer
UNWANTED = ("original/*", "consolidated*", "*/*.safetensors", "onnx/*")
_TransportError = HfHubHTTPError.__bases__[0]  # of the HTTP library that huggingface_hub is built on
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:[:/](?P<choice>[^:]+))?")


def resolve(m: str, *, weights: bool = True) -> Path:
    """The .gguf file or folder of `m`: a path, "org/repo", or one file of a GGUF repository,
    "org/repo/file.gguf" or "org/repo:Q4_K_M" (any part of a name that only one file has). Without `weights`
    only small files are fetched.

    Raises ConfigError when `m` names nothing or too much, CheckpointError when it cannot be fetched."""
    path = Path(m).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"{path} is not a .gguf file: give a .gguf file, a folder or a Hugging Face id")
        return path
    if path.is_dir():
        return _in_folder(path)
    name = _ID.fullmatch(m)
    if name is None or m.startswith((".", "/", "~")):
        raise ConfigError(
            f"no file or folder {m}, and it is no Hugging Face id (org/repo): check the spelling"
        )
    if name["choice"]:
        return _gguf(name["repo"], name["choice"])
    return _repo(name["repo"], weights)


def _in_folder(folder: Path) -> Path:
    """The folder itself, or the one GGUF model in it where there is no config.json."""
    if (folder / "config.json").is_file():
        return folder
    files = sorted(file.name for file in folder.glob("*.gguf"))
    return folder / _only(files, "", str(folder)) if files else folder


def _only(files: list[str], choice: str, where: str) -> str:
    """The one model among the .gguf `files` that is called `choice` or has it in its name; of a split model
    the first part."""
    firsts = [file for file in files if not (part := _SPLIT.search(file)) or int(part[1]) == 1]
    fitting = [file for file in firsts if file == choice] or [
        file for file in firsts if choice.lower().removesuffix(".gguf") in file.lower()
    ]
    if len(fitting) != 1:
        wrong = f"{len(fitting)} models" + (f" called like {choice!r}" if choice else "")
        raise ConfigError(f"{where} has {wrong}, name one of: {', '.join(fitting or firsts)}")
    return fitting[0]


def _repo(repo: str, weights: bool) -> Path:
    """A whole repository of safetensors, or the only model of a GGUF repository."""
    patterns = [*SMALL_FILES, "*.safetensors"] if weights else list(SMALL_FILES)
    with _explained(repo, "its *.safetensors and *.json files"):
        folder = Path(snapshot_download(repo, allow_patterns=patterns, ignore_patterns=list(UNWANTED)))
    if (folder / "config.json").is_file() and (not weights or any(folder.glob("*.safetensors"))):
        return folder
    files = _gguf_files(repo)
    if not files:
        raise ConfigError(
            f"{repo} has neither safetensors with a config.json nor .gguf files: use another model"
        )
    return _gguf(repo, _only(files, "", repo))


def _gguf(repo: str, choice: str) -> Path:
    """One model of a GGUF repository, all parts of it where it is split."""
    if not choice.endswith(".gguf"):
        choice = _only(_gguf_files(repo), choice, repo)
    parts = [choice]
    if split := _SPLIT.search(choice):
        stem, count = choice[: split.start()], int(split[2])
        parts = [f"{stem}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    paths = []
    for part in parts:
        with _explained(repo, part):
            paths.append(Path(hf_hub_download(repo, part)))
    return paths[0]


def _gguf_files(repo: str) -> list[str]:
    """Names of the .gguf files of a repository; without a network, of those that were fetched before."""
    with _explained(repo, "the list of its files"):
        try:
            files = list_repo_files(repo)
        except (OfflineModeIsEnabled, _TransportError, ConnectionError):
            folder = Path(snapshot_download(repo, local_files_only=True))
            files = [file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf")]
    return sorted(file for file in files if file.endswith(".gguf"))


@contextmanager
def _explained(repo: str, what: str) -> Iterator[None]:
    """Failures of the library as one line: what was missing, where it was looked for, what to do."""
    where = f"looked in {constants.HF_HUB_CACHE} and at {constants.ENDPOINT}"
    try:
        yield
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repo} asks for an agreement: accept it there and run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"no model {repo} ({where}): check the spelling, `hf auth login` if private"
        ) from error
    except HFValidationError as error:
        raise ConfigError(f"{repo!r} is no Hugging Face id: check the spelling") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise CheckpointError(
            f"{repo}: {what} not on this machine, and no network ({where}): connect, or give a path"
        ) from error
    except (_TransportError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(f"{repo}: {what} could not be fetched, {reason[0]} ({where})") from error
