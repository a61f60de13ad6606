"""From a name to files: local paths, and a stand-in for the Hugging Face hub."""

from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from xinfer.errors import CheckpointError, ConfigError
from xinfer.load import hub
from xinfer.load.hub import resolve


def test_resolve_local(tmp_path):
    with pytest.raises(ConfigError, match="no Hugging Face id"):
        resolve(str(tmp_path / "none"))
    (tmp_path / "readme.txt").write_text("")
    with pytest.raises(ConfigError, match=r"not a \.gguf file"):
        resolve(str(tmp_path / "readme.txt"))
    assert resolve(str(tmp_path)) == tmp_path
    for name in ("m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"):
        (tmp_path / name).write_text("")
    assert resolve(str(tmp_path)).name == "m-Q4_0-00001-of-00002.gguf"
    (tmp_path / "m-Q8_0.gguf").write_text("")
    with pytest.raises(ConfigError, match="has 2 models, name one of"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == tmp_path


class Hub:
    """Repositories as lists of file names; fetching a file makes it, empty, under `cache`."""

    def __init__(self, cache: Path, repos: dict[str, list[str]]) -> None:
        self.cache, self.repos, self.online = cache, repos, True
        self.fetched: list[str] = []

    def names(self, repo: str) -> list[str]:
        if not self.online:
            raise ConnectionError("no route")
        return self.repos[repo]

    def file(self, repo: str, name: str) -> str:
        path = self.cache / repo / name
        if not path.exists():
            if not self.online:
                raise LocalEntryNotFoundError("not cached")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
            self.fetched.append(name)
        return str(path)

    def snapshot(self, repo: str, allow_patterns=None, ignore_patterns=(), local_files_only=False) -> str:
        folder = self.cache / repo
        if local_files_only or not self.online:
            if not folder.is_dir():
                raise LocalEntryNotFoundError("not cached")
            return str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.repos[repo]:
            path = Path(name)
            wanted = any(path.match(pattern) for pattern in allow_patterns)
            if wanted and not any(path.match(pattern) for pattern in ignore_patterns):
                self.file(repo, name)
        return str(folder)


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Hub:
    split = [f"big-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    repos = {
        "org/model": [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "original/x.safetensors",
            "a.bin",
        ],
        "org/gguf": ["README.md", "m-Q4_0.gguf", "m-Q4_K_M.gguf", *split],
        "org/one": ["m-Q4_0.gguf"],
        "org/none": ["a.bin"],
    }
    made = Hub(tmp_path / "hub", repos)
    monkeypatch.setattr(hub, "list_repo_files", made.names)
    monkeypatch.setattr(hub, "hf_hub_download", made.file)
    monkeypatch.setattr(hub, "snapshot_download", made.snapshot)
    return made


def test_a_repository(fake):
    assert resolve("org/model") == fake.cache / "org/model"
    assert fake.fetched == ["config.json", "model.safetensors", "tokenizer.json"]


def test_small_files_only(fake):
    assert resolve("org/model", weights=False) == fake.cache / "org/model"
    assert fake.fetched == ["config.json", "tokenizer.json"]


@pytest.mark.parametrize("name", ["org/gguf/m-Q4_0.gguf", "org/gguf:m-Q4_0.gguf", "org/gguf:q4_0"])
def test_a_file_of_a_repository(fake, name):
    assert resolve(name) == fake.cache / "org/gguf/m-Q4_0.gguf"
    assert fake.fetched == ["m-Q4_0.gguf"]


def test_a_split_model_comes_whole(fake):
    assert resolve("org/gguf:Q8_0").name == "big-Q8_0-00001-of-00002.gguf"
    assert len(fake.fetched) == 2


def test_the_only_file_and_too_many(fake):
    assert resolve("org/one").name == "m-Q4_0.gguf"
    with pytest.raises(
        ConfigError, match=r"org/gguf has 3 models, name one of: big-Q8_0-00001-of-00002\.gguf, m"
    ):
        resolve("org/gguf")
    with pytest.raises(ConfigError, match="has 2 models called like 'Q4'"):
        resolve("org/gguf:Q4")
    with pytest.raises(ConfigError, match="has neither safetensors"):
        resolve("org/none")


def test_offline(fake):
    resolve("org/gguf:Q4_0")
    fake.online = False
    assert resolve("org/gguf:Q4_0").name == "m-Q4_0.gguf"
    with pytest.raises(CheckpointError, match=r"not on this machine, and no network .looked in"):
        resolve("org/model")
