"""Settings: which source wins, where a value came from, and what is refused."""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_mcp.config import (
    SETTINGS,
    Config,
    Settings,
    configure,
    find_workspace,
    load_config,
    unknown_environment,
)
from stitch_mcp.server.server_context import open_server_context
from stitch_tools.errors import EnvironmentMissingError, UsageError
from stitch_tools.models.acceptance import AcceptPolicy


def load(workspace: Path, *, flags: dict[str, object] | None = None, **environ: str) -> Config:
    user = workspace / "user" / "config.toml"
    return load_config(
        {"workspace": str(workspace), **(flags or {})}, environ=environ, cwd=workspace, user_file=user
    )


def test_defaults_hold_where_nothing_is_set(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert (config.target, config.threads, config.min_speedup) == ("cpu", None, None)
    assert config.origin("target") == "default"
    assert config.origin("workspace") == "--workspace"


def test_each_source_wins_over_the_weaker_ones(tmp_path: Path) -> None:
    seen: list[tuple[float | None, str]] = []

    def note(config: Config) -> None:
        seen.append((config.min_speedup, config.origin("min_speedup")))

    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "config.toml").write_text("min-speedup = 1\n", encoding="utf-8")
    note(load(tmp_path))
    (tmp_path / "pyproject.toml").write_text("[tool.stitch]\nmin-speedup = 2\n", encoding="utf-8")
    note(load(tmp_path))
    (tmp_path / "stitch.toml").write_text("min-speedup = 3\n", encoding="utf-8")
    note(load(tmp_path))
    note(load(tmp_path, STITCH_MIN_SPEEDUP="4"))
    note(load(tmp_path, STITCH_MIN_SPEEDUP="4", flags={"min_speedup": 5}))
    assert seen == [
        (1, str(tmp_path / "user" / "config.toml")),
        (2, f"{tmp_path / 'pyproject.toml'} [tool.stitch]"),
        (3, str(tmp_path / "stitch.toml")),
        (4, "STITCH_MIN_SPEEDUP"),
        (5, "--min-speedup"),
    ]


def test_more_threads_than_processors_are_refused_unless_they_are_overridden(tmp_path: Path) -> None:
    (tmp_path / "stitch.toml").write_text("threads = 100000\n", encoding="utf-8")
    with pytest.raises(UsageError, match="100000 threads are more than this machine's processors"):
        load(tmp_path)
    assert load(tmp_path, STITCH_THREADS="1").threads == 1


def test_a_current_folder_that_was_removed_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(EnvironmentMissingError, match="the current folder cannot be found"):
        load_config({}, environ={}, user_file=tmp_path / "none")


def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "stitch.toml").write_text("thread = 3\n", encoding="utf-8")
    with pytest.raises(UsageError, match="unknown setting `thread`") as caught:
        load(tmp_path)
    assert caught.value.hint == "did you mean `threads`?"


def test_keys_may_be_written_with_dashes(tmp_path: Path) -> None:
    (tmp_path / "stitch.toml").write_text("min-speedup = 1.5\n", encoding="utf-8")
    assert load(tmp_path).min_speedup == 1.5


def test_the_workspace_cannot_be_set_in_a_file_that_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "stitch.toml").write_text('workspace = "elsewhere"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be set in a file"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("threads = 0", "at least 1"),
        ("threads = true", "whole number"),
        ('target = "tpu"', "cpu, cuda, cuda:N or cuda:sm_NN"),
        ('require-sandbox = "strong"', "one of full"),
        ("time-limit-s = -1", "above 0"),
        ('forbid-relaxed = "perhaps"', "true or false"),
        ("threads = ", "not valid TOML"),
    ],
)
def test_a_bad_value_is_refused_with_the_reason(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "stitch.toml").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=reason):
        load(tmp_path)


def test_relative_paths_start_where_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "stitch.toml").write_text('cache-dir = "build cache"\n', encoding="utf-8")
    assert load(tmp_path).cache_dir == tmp_path / "build cache"
    elsewhere = tmp_path / "elsewhere"
    flags: dict[str, object] = {"workspace": str(tmp_path), "cache_dir": "here"}
    config = load_config(flags, environ={}, cwd=elsewhere, user_file=tmp_path / "none")
    assert config.cache_dir == elsewhere / "here"


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    assert load(tmp_path, STITCH_TARGET="").origin("target") == "default"


def test_a_misspelt_variable_is_named(tmp_path: Path) -> None:
    assert "STITCH_THREADS" in unknown_environment({"STITCH_THREAD": "2"})[0]
    assert unknown_environment({"STITCH_LOCK_DIR": "x", "STITCH_VENV": "y", "HOME": "z"}) == ()


def test_home_and_root_are_no_workspace(tmp_path: Path) -> None:
    for cwd in (tmp_path, Path("/")):
        config = load_config({}, environ={"HOME": str(tmp_path)}, cwd=cwd, user_file=tmp_path / "none")
        assert config.origin("workspace") == "user data folder"


def test_a_named_workspace_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for begin in (configure, open_server_context):
        with pytest.raises(UsageError, match="--workspace names a folder that is not there") as caught:
            begin({"workspace": str(tmp_path / "nope")})
        assert "make it first" in caught.value.hint
    assert not (tmp_path / "nope").exists()


def test_a_workspace_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="names a file"):
        load(tmp_path / "note")


def test_every_setting_has_help_and_an_environment_variable(tmp_path: Path) -> None:
    assert all(SETTINGS.values())
    assert set(Settings.__annotations__) == set(SETTINGS)
    config = load(tmp_path, STITCH_PYTHON="python3", STITCH_LOCK_DIR="locks", STITCH_FORBID_RELAXED="yes")
    assert (config.python, config.lock_dir, config.forbid_relaxed) == ("python3", tmp_path / "locks", True)


def test_what_is_accepted_comes_from_flags_variables_and_the_user_and_not_with_the_code(
    tmp_path: Path,
) -> None:
    assert load(tmp_path).policy == AcceptPolicy()
    assert load(tmp_path, STITCH_ACCEPT="weak, partial").accept == ("partial", "weak")
    config = load(tmp_path, flags={"accept": ("library_patched",)}, STITCH_ACCEPT="weak")
    assert (config.policy.names, config.origin("accept")) == (("library_patched",), "--accept")
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "config.toml").write_text('accept = ["weak"]', encoding="utf-8")
    assert load(tmp_path).accept == ("weak",)
    with pytest.raises(UsageError, match="STITCH_ACCEPT cannot be 'all': a policy cannot accept 'all'"):
        load(tmp_path, STITCH_ACCEPT="all")
    (tmp_path / "stitch.toml").write_text('accept = ["weak"]', encoding="utf-8")
    with pytest.raises(UsageError, match="`accept` cannot be set in a file"):
        load(tmp_path)


def test_a_table_of_models_names_a_model_or_the_command_of_an_agent(tmp_path: Path) -> None:
    user = tmp_path / "user" / "config.toml"
    user.parent.mkdir()
    user.write_text(
        '[models.mine]\ncommand = "my-agent --acp"\n[models.far]\nmodel = "m"\n', encoding="utf-8"
    )
    models = load(tmp_path).models
    assert (models["mine"].command, models["mine"].model) == ("my-agent --acp", "")
    assert (models["far"].command, models["far"].model) == (None, "m")
    user.write_text('[models.mine]\neffort = "high"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="has neither `model` nor `command`"):
        load(tmp_path)
    # A workspace may have come with the code that is to be run: no command is taken from it.
    user.unlink()
    (tmp_path / "stitch.toml").write_text('[models.mine]\ncommand = "evil"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="models"):
        load(tmp_path)


@given(st.text(max_size=40))
def test_any_text_as_stitch_toml_gives_settings_or_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "stitch.toml").write_text(text, encoding="utf-8", newline="")
    with contextlib.suppress(UsageError):
        load(folder)


def test_a_value_that_does_not_fit_names_its_source_once_and_what_would_fit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for flags, message in (
        ({"threads": "x"}, "--threads cannot be 'x': it must be a whole number"),
        ({"time_limit_s": "x"}, "--time-limit-s cannot be 'x': it must be a number"),
        ({"cache_dir": str(tmp_path / "file")}, "it must be a folder"),
    ):
        with pytest.raises(UsageError) as caught:
            load_config(flags, environ={}, cwd=tmp_path, user_file=tmp_path / "none.toml")
        assert message in caught.value.message


def test_a_settings_file_that_never_ends_or_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "stitch.toml"
    own.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="no regular file"):
        load(tmp_path)
    own.unlink()
    os.mkfifo(own)
    with pytest.raises(UsageError, match="no regular file"):
        load(tmp_path)
    own.unlink()
    own.write_text(f"x={'[' * 20000}", encoding="utf-8")
    with pytest.raises(UsageError, match="nested too deeply"):
        load(tmp_path)


def test_a_folder_without_permission_is_what_the_message_names() -> None:
    before = os.geteuid()
    # Not below tmp_path, whose own folders nobody else may enter.
    with tempfile.TemporaryDirectory() as name:
        closed = Path(name)
        closed.chmod(0)
        if before == 0:  # root reads everything
            os.seteuid(65534)
        try:
            with pytest.raises(UsageError) as caught:
                load_config({"workspace": name}, environ={}, cwd=Path("/"), user_file=Path("/none"))
            with pytest.raises(UsageError) as below:
                load_config({"workspace": f"{name}/below"}, environ={}, cwd=Path("/"))
        finally:
            os.seteuid(before)
            closed.chmod(0o700)
    assert caught.value.message == f"the folder {closed} cannot be read: Permission denied"
    assert "--workspace" in caught.value.hint
    assert below.value.message == f"--workspace cannot be {closed}/below: Permission denied"


@pytest.mark.parametrize("name", ["~no-such-user/x", "x" * 5000])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    for setting in ("workspace", "cache_dir"):
        with pytest.raises(UsageError) as caught:
            load_config({"workspace": str(tmp_path), setting: name}, environ={}, cwd=tmp_path)
        assert caught.value.hint


def test_a_current_folder_that_takes_no_files_is_no_workspace(tmp_path: Path) -> None:
    found, origin = find_workspace(None, {}, Path("/proc"))
    assert (found.name, origin) == ("stitch-mcp", "user data folder")
    assert find_workspace(None, {}, tmp_path) == (tmp_path, "current folder")
    assert list(tmp_path.iterdir()) == []
