"""The environment table: defaults, accepted forms, and that nothing malformed or unknown passes in
silence."""

from pathlib import Path

import pytest

from xinfer import env
from xinfer.errors import ConfigError


def test_defaults() -> None:
    assert env.load({}) == env.Env(cache=Path.home() / ".cache" / "xinfer", prebuilt=None, debug=False)
    assert env.load({"XINFER_DEBUG": "", "PATH": "/bin"}).debug is False


@pytest.mark.parametrize(
    "text, value", [("1", True), ("TRUE", True), ("on", True), ("0", False), ("No", False)]
)
def test_switch(text: str, value: bool) -> None:
    assert env.load({"XINFER_DEBUG": text}).debug is value


def test_folder(tmp_path: Path) -> None:
    assert env.load({"XINFER_CACHE": str(tmp_path)}).cache == tmp_path
    assert env.load({"XINFER_CACHE": "~/x"}).cache == Path.home() / "x"


def test_existing_folder(tmp_path: Path) -> None:
    assert env.load({"XINFER_PREBUILT": str(tmp_path)}).prebuilt == tmp_path
    assert env.load({"XINFER_PREBUILT": ""}).prebuilt is None
    for wrong in ("cubins", str(tmp_path / "missing"), __file__):
        with pytest.raises(ConfigError, match=r"XINFER_PREBUILT=.* absolute path of a folder that exists"):
            env.load({"XINFER_PREBUILT": wrong})


def test_bad_value_names_the_accepted_forms(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"XINFER_DEBUG='maybe' .* 1, true, yes, on, 0, false, no or off"):
        env.load({"XINFER_DEBUG": "maybe"})
    with pytest.raises(ConfigError, match=r"XINFER_CACHE='cache' .* absolute path"):
        env.load({"XINFER_CACHE": "cache"})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="XINFER_CACHE"):
        env.load({"XINFER_CACHE": str(tmp_path / "file")})


def test_unknown_variable_names_the_closest() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown environment variable XINFER_CACH; did you mean 'XINFER_CACHE'\?"
    ):
        env.load({"XINFER_CACH": "/tmp"})
    with pytest.raises(ConfigError, match="XINFER_ZZ; this version reads XINFER_CACHE"):
        env.load({"XINFER_ZZ": "1"})
    env.load({"XINFER_TEST_MODELS": "/anywhere"})


def test_table_and_env_agree() -> None:
    assert [variable.field for variable in env.TABLE] == list(env.Env.__dataclass_fields__)
    for variable in env.TABLE:
        assert variable.name in env.describe() and variable.meaning in env.describe()
        variable.kind.parse(variable.default)
