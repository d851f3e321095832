"""Whole and torn checkpoints, and settings that cannot be used."""

from pathlib import Path

import pytest

from stitch_mcp.rl.training.checkpoints import is_whole, mark_complete, newest_whole, remove_torn
from stitch_mcp.rl.training.train_config import read_config
from stitch_tools.errors import UsageError


def checkpoint(folder: Path, step: int, *, whole: bool = True) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "weights").write_bytes(b"12345678")
    if whole:
        mark_complete(path)
    return path


def test_the_newest_whole_checkpoint_counts_and_torn_ones_go(tmp_path: Path) -> None:
    checkpoint(tmp_path, 9)
    good = checkpoint(tmp_path, 10)
    torn = checkpoint(tmp_path, 20, whole=False)
    (tmp_path / "checkpoint-best").mkdir()
    assert newest_whole(tmp_path) == good
    assert remove_torn(tmp_path) == [torn]
    assert not torn.exists()
    assert remove_torn(tmp_path) == []


def test_a_file_that_lost_bytes_after_the_mark_makes_a_checkpoint_torn(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 1)
    assert is_whole(path)
    (path / "weights").write_bytes(b"1234")
    assert not is_whole(path)
    (path / "weights").unlink()
    assert not is_whole(path)


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert newest_whole(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("output = 'o'", "data.train"),
        ("output = 'o'\nsteps = 3", "steps"),
        ("output = 'o'\n[policy]\nkind = 'choices'", "train_rows"),
        ("output = 'o'\n[data]\ntrain = 't.jsonl'", "tiny"),
        (
            "output = 'o'\n[model]\npath='m'\n[data]\ntrain='t'\n[reward]\npreset='milestone'",
            "compile_baselines",
        ),
        ("output = 'o'\n[model]\npath='m'\n[data]\ntrain='t'\n[grpo]\ngroup_size = 1", "grpo.group_size"),
        ("output =", "TOML"),
    ],
)
def test_settings_that_do_not_fit_are_named(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "train.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=named):
        read_config(file)


def test_paths_start_at_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text("output = 'o'\n[model]\npath='m'\n[data]\ntrain='t.jsonl'\n", encoding="utf-8")
    config = read_config(file)
    assert (config.output, config.data.train) == (tmp_path / "o", tmp_path / "t.jsonl")


@pytest.mark.parametrize("name", ["choices-cpu", "choices-cuda", "code-lora"])
def test_the_packaged_settings_can_be_read(name: str) -> None:
    config = read_config(Path(__file__).parents[4] / "examples" / "rl" / f"{name}.toml")
    assert config.policy.kind == name.partition("-")[0]
