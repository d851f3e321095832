"""The target interpreter is found in order, by running each candidate once and importing no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.run.interpreter import find_interpreter, probe


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STITCH_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)


def environment_at(folder: Path, torch_version: str | None) -> Path:
    """A virtual environment with a torch that has a version but cannot be imported."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    if torch_version:
        (library,) = (folder / "lib").glob("python*/site-packages")
        (library / "torch").mkdir()
        (library / "torch" / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
        (library / "torch" / "version.py").write_text(f"__version__ = {torch_version!r}", encoding="utf-8")
    return folder / "bin" / "python"


def test_the_option_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment_at(tmp_path / "ein Ordner ü", "2.9.1+cpu")
    monkeypatch.setenv("STITCH_PYTHON", "/nowhere/python")
    found = find_interpreter(str(python), tmp_path)
    assert (found.path, found.torch_version, found.source) == (str(python), "2.9.1+cpu", "option")
    assert found.python_version.startswith("3.")


def test_a_folder_of_an_environment_may_be_named(tmp_path: Path) -> None:
    python = environment_at(tmp_path / "v", "2.6.0")
    assert find_interpreter(str(tmp_path / "v"), tmp_path).path == str(python)


def test_the_variable_comes_before_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment_at(tmp_path / ".venv", "2.6.0")
    named = environment_at(tmp_path / "named", "2.7.0")
    monkeypatch.setenv("STITCH_PYTHON", str(named))
    assert find_interpreter(None, tmp_path).source == "STITCH_PYTHON"


def test_the_workspace_comes_before_the_active_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment_at(tmp_path / ".venv", "2.6.0")
    environment_at(tmp_path / "active", "2.7.0")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert find_interpreter(None, tmp_path).source == "workspace .venv"
    assert find_interpreter(None, tmp_path / "active").source == "VIRTUAL_ENV"


def test_an_environment_without_torch_that_nobody_named_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment_at(tmp_path / ".venv", None)
    environment_at(tmp_path / "conda", "2.8.0")
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    assert find_interpreter(None, tmp_path).source == "CONDA_PREFIX"
    assert find_interpreter(None, tmp_path, need_torch=False).source == "workspace .venv"


def test_the_set_up_s_interpreter_comes_before_our_own_and_after_the_active_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = environment_at(tmp_path / "chosen", "2.8.0")
    own = environment_at(tmp_path / "own", "2.7.0")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setattr(sys, "executable", str(own))
    target = tmp_path / "own" / ".stitch-target"
    for text, path, source in (("", own, "own"), (f"{chosen}\n", chosen, "set-up"), ("/nowhere", own, "own")):
        target.write_text(text, encoding="utf-8")
        found = find_interpreter(None, tmp_path)
        assert (found.path, found.source) == (str(path), source)
    target.write_text(str(chosen), encoding="utf-8")
    environment_at(tmp_path / "active", "2.6.0")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    assert find_interpreter(None, tmp_path).source == "VIRTUAL_ENV"


def test_a_named_one_without_torch_is_refused_with_the_fix(tmp_path: Path) -> None:
    python = environment_at(tmp_path / "v", None)
    with pytest.raises(EnvironmentMissingError, match="has no torch") as refused:
        find_interpreter(str(python), tmp_path)
    assert f'{python} -m pip install "torch>=2.6"' in refused.value.hint


def test_an_old_torch_is_refused(tmp_path: Path) -> None:
    python = environment_at(tmp_path / "v", "2.5.1+cu124")
    with pytest.raises(EnvironmentMissingError, match=r"torch 2\.5\.1"):
        find_interpreter(str(python), tmp_path)


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho \'["/old/python", [3, 8, 1], "2.9.0"]\'\n', encoding="utf-8")
    fake.chmod(0o755)
    with pytest.raises(EnvironmentMissingError, match=r"Python 3\.8\.1, at least 3\.10"):
        find_interpreter(str(fake), tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [("/nowhere/python", "cannot be run"), ("/bin/true", "not a usable Python"), ("/etc", "cannot be run")],
)
def test_what_is_no_python_is_refused_with_the_fix(path: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissingError, match=message) as refused:
        find_interpreter(path, tmp_path)
    assert "--python" in refused.value.hint


def test_a_python_that_prints_at_start_is_understood(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\necho hello\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    fake.chmod(0o755)
    assert probe(str(fake)).python_version.startswith("3.")


def test_the_folders_of_its_packages_are_told_those_of_the_python_below_among_them(tmp_path: Path) -> None:
    python = environment_at(tmp_path / "v", None)
    (own,) = (tmp_path / "v").glob("lib/python*/site-packages")
    assert probe(str(python)).packages[0] == own
    settings = tmp_path / "v" / "pyvenv.cfg"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("packages = false", "packages = true"), encoding="utf-8")
    assert len(probe(str(python)).packages) > 1
