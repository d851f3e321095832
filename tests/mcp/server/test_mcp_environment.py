"""Equal calls are one job only as long as compilers and packages are the same."""

import os
from pathlib import Path

import pytest

from stitch_mcp.config import Config
from stitch_mcp.server.environment_fingerprint import fingerprint


def program(path: Path, text: str = "") -> Path:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("place", ["PATH", "CXX", "CXX with a launcher", "CUDA_HOME"])
def test_a_compiler_that_is_updated_in_its_place_makes_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "CUDA_HOME":
        compiler = program(tmp_path / "cuda" / "bin" / "nvcc")
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    elif place == "PATH":
        # As distributions have it: the name is a link to what an update replaces.
        compiler = program(tmp_path / "real" / "g++-13")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "g++").symlink_to(compiler)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    elif place == "CXX":
        compiler = program(tmp_path / "my compilers" / "g++")
        monkeypatch.setenv("CXX", str(compiler))
    else:
        compiler = program(tmp_path / "g++-9")
        monkeypatch.setenv("CXX", f"ccache {compiler}")
    config = Config(workspace=tmp_path)
    before = fingerprint(config)
    assert fingerprint(config) == before
    program(compiler, "# another version")
    assert fingerprint(config) != before


@pytest.mark.parametrize("packages", ["lib/python3.12/site-packages", "local/lib/python3.12/dist-packages"])
def test_a_package_that_is_installed_makes_another_environment(tmp_path: Path, packages: str) -> None:
    python = program(tmp_path / "usr" / "bin" / "python3")
    folder = tmp_path / "usr" / packages
    folder.mkdir(parents=True)
    config = Config(workspace=tmp_path, python=str(python))
    before = fingerprint(config)
    assert fingerprint(config) == before
    os.utime(folder, ns=(1, 1))  # as after an install, whatever the clock's steps
    assert fingerprint(config) != before
