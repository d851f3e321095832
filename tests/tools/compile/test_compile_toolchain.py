"""Compilers are found, and what does not fit is refused with the fix. Fakes are real little programs."""

from pathlib import Path

import pytest

from stitch_tools.compile.toolchain import (
    Compiler,
    cuda_root,
    cxx_problem,
    find_cpp_compiler,
    find_nvcc,
    host_compiler_problem,
    native_architecture,
    parse_version,
)
from stitch_tools.errors import EnvironmentMissingError

GCC_TEXT = "g++ (GCC) {version}\nCopyright (C) Free Software Foundation, Inc.\n"


def fake_compiler(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_chosen_compiler_wins_over_cxx_and_path(tmp_path: Path) -> None:
    chosen = fake_compiler(tmp_path / "my tools", "g++", GCC_TEXT.format(version="13.2.0"))
    other = fake_compiler(tmp_path / "b", "g++", GCC_TEXT.format(version="12.1.0"))
    env = {"STITCH_CXX": str(chosen), "CXX": str(other), "PATH": str(other.parent)}
    assert find_cpp_compiler(env).version == (13, 2, 0)
    assert find_cpp_compiler({"CXX": str(other), "PATH": ""}).version == (12, 1, 0)


def test_cxx_may_carry_a_launcher(tmp_path: Path) -> None:
    real = fake_compiler(tmp_path, "g++", GCC_TEXT.format(version="12.1.0"))
    launcher = tmp_path / "launch"
    launcher.write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    assert find_cpp_compiler({"CXX": f"{launcher} {real}", "PATH": ""}).command == (str(launcher), str(real))


def test_an_old_compiler_is_passed_over_for_a_newer_one(tmp_path: Path) -> None:
    fake_compiler(tmp_path, "g++", GCC_TEXT.format(version="8.3.0"))
    newer = fake_compiler(tmp_path, "g++-11", GCC_TEXT.format(version="11.4.0"))
    assert find_cpp_compiler({"PATH": str(tmp_path)}).path == newer


def test_only_an_old_compiler_is_a_clear_error(tmp_path: Path) -> None:
    fake_compiler(tmp_path, "g++", GCC_TEXT.format(version="8.3.0"))
    with pytest.raises(EnvironmentMissingError, match=r"8\.3\.0, and 9 or newer is needed") as caught:
        find_cpp_compiler({"PATH": str(tmp_path)})
    assert "apt install g++" in caught.value.hint


def test_a_clang_without_openmp_is_passed_over_and_told_what_it_lacks(tmp_path: Path) -> None:
    clang = fake_compiler(tmp_path, "clang++", "clang version 18.1.3\n")
    script = clang.read_text(encoding="utf-8")
    clang.write_text(script.replace("cat", '[ "$1" = --version ] || exit 1\ncat', 1), encoding="utf-8")
    with pytest.raises(EnvironmentMissingError, match=r"has no OpenMP \(omp\.h\)") as caught:
        find_cpp_compiler({"PATH": str(tmp_path)})
    assert "apt install libomp-dev" in caught.value.hint
    newer = fake_compiler(tmp_path, "g++-11", GCC_TEXT.format(version="11.4.0"))
    assert find_cpp_compiler({"PATH": str(tmp_path)}).path == newer


def test_no_compiler_at_all_says_how_to_install_one(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissingError, match=r"no C\+\+ compiler") as caught:
        find_cpp_compiler({"PATH": str(tmp_path)})
    assert "STITCH_CXX" in caught.value.hint


def test_a_chosen_compiler_that_is_not_there_is_named() -> None:
    with pytest.raises(EnvironmentMissingError, match="STITCH_CXX=/nowhere/g"):
        find_cpp_compiler({"STITCH_CXX": "/nowhere/g++", "PATH": "/usr/bin"})


def test_a_cxx_that_is_not_there_is_named(tmp_path: Path) -> None:
    fake_compiler(tmp_path, "g++", GCC_TEXT.format(version="12.1.0"))
    with pytest.raises(
        EnvironmentMissingError, match="CXX=/nope names a program that is not there"
    ) as caught:
        find_cpp_compiler({"CXX": "/nope", "PATH": str(tmp_path)})
    assert "unset CXX" in caught.value.hint


def test_a_cxx_of_another_kind_is_passed_over_and_told(tmp_path: Path) -> None:
    """It may be set for builds that have nothing to do with us."""
    other = fake_compiler(tmp_path, "icpx", "Some other compiler 2025.1\n")
    real = fake_compiler(tmp_path, "g++", GCC_TEXT.format(version="12.1.0"))
    env = {"CXX": str(other), "PATH": str(tmp_path)}
    assert find_cpp_compiler(env).path == real
    assert f"CXX={other} is not a g++ or clang++" in (cxx_problem(env) or "")
    assert cxx_problem({**env, "STITCH_CXX": str(real)}) is None
    assert cxx_problem({**env, "CXX": str(real)}) is None


def test_a_program_that_is_no_compiler_is_not_taken_for_one(tmp_path: Path) -> None:
    fake_compiler(tmp_path, "g++", "hello 9.9.9\n")
    with pytest.raises(EnvironmentMissingError):
        find_cpp_compiler({"PATH": str(tmp_path)})


def test_versions_of_gcc_clang_and_nvcc_are_read() -> None:
    gcc = parse_version(("g++",), "g++ (Debian 12.2.0-14+deb12u1) 12.2.0\n(C) Free Software Foundation\n")
    clang = parse_version(("c",), "Ubuntu clang version 18.1.3 (1ubuntu1)\nTarget: x86_64\n")
    nvcc = parse_version(
        ("n",), "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n"
    )
    assert [(row.kind, row.version) for row in (gcc, clang, nvcc) if row] == [
        ("gcc", (12, 2, 0)),
        ("clang", (18, 1, 3)),
        ("nvcc", (13, 0, 88)),
    ]


def test_the_native_architecture_is_spelled_out() -> None:
    assert "-march=" in native_architecture(find_cpp_compiler()).replace("-target-cpu ", "-march=")


@pytest.mark.nvcc
def test_the_toolkit_tells_which_host_compilers_it_takes() -> None:
    try:
        nvcc = find_nvcc()
    except EnvironmentMissingError as error:
        pytest.skip(error.message)
    assert (cuda_root(nvcc) / "include" / "cuda_runtime.h").is_file()
    assert host_compiler_problem(nvcc, Compiler(("g++",), "gcc", (9, 1, 0), "")) is None
    problem = host_compiler_problem(nvcc, Compiler(("/x/g++-99",), "gcc", (99, 1, 0), ""))
    assert problem is not None
    assert "/x/g++-99 is 99.1.0" in problem


def test_no_nvcc_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("this machine has nvcc in its usual place")
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(EnvironmentMissingError, match="nvcc") as caught:
        find_nvcc({"PATH": str(tmp_path)})
    assert "CUDA_HOME" in caught.value.hint
