"""C++ programs are really built here: libraries, errors with their lines, limits, the command repeated."""

import ctypes
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from stitch_tools.compile.build import compile_program, plan_build
from stitch_tools.compile.confinement import readable_paths
from stitch_tools.compile.elf import ABI_SYMBOLS, exported_symbols
from stitch_tools.compile.headers import find_onednn
from stitch_tools.compile.runner import Completed, refuse_full_disk, run_compiler
from stitch_tools.errors import EnvironmentMissingError, StoreError, UsageError
from stitch_tools.judge.correctness.check_wording import describe_build
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import SourceFile
from stitch_tools.storage.store import Store
from tests.tools.compile_support import EMPTY_PROGRAM, store_program


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def build(store: Store, source: str, others: Mapping[str, str] | None = None, **options: object) -> Build:
    program = store_program(store, {"main.cpp": source, **(others or {})})
    cache_dir = store.root.parent / "cache"
    return compile_program(program, store, cache_dir=cache_dir, **options)  # type: ignore[arg-type]


def test_a_program_becomes_a_library_that_loads_and_exports_only_the_abi(store: Store) -> None:
    made = build(store, EMPTY_PROGRAM)
    assert made.ok
    assert made.toolchain == "cpp"
    assert made.artifact is not None
    assert made.diagnostics == ()
    assert ctypes.CDLL(made.artifact).stitch_abi_version() == 1
    stitch_names = {name for name in exported_symbols(Path(made.artifact)) if "stitch" in name}
    assert stitch_names == set(ABI_SYMBOLS)


def test_the_second_build_is_a_cache_hit_at_least_20_times_quicker(store: Store) -> None:
    started = time.monotonic()
    first = build(store, EMPTY_PROGRAM)
    built_s = time.monotonic() - started
    second, quickest_s = first, built_s
    for _ in range(10):
        started = time.monotonic()
        second = build(store, EMPTY_PROGRAM)
        quickest_s = min(quickest_s, time.monotonic() - started)
    assert built_s >= 20 * quickest_s
    assert second.cache_hit
    assert not first.cache_hit
    assert second.wall_s is None
    assert second.artifact == first.artifact
    assert second.command == first.command


def test_an_error_names_file_line_column_and_shows_the_line(store: Store) -> None:
    made = build(store, EMPTY_PROGRAM + "\nint broken() {\n  return undefined_name;\n}\n")
    assert not made.ok
    assert made.artifact is None
    error = made.diagnostics[0]
    assert (error.severity, error.file) == ("error", "main.cpp")
    assert error.source_line == "  return undefined_name;"
    assert error.column == 10
    assert "undefined_name" in error.message
    assert "undefined_name" in error.doc_query


def test_a_second_source_that_is_not_included_is_named_where_the_linker_misses_something(
    store: Store,
) -> None:
    main = EMPTY_PROGRAM + "\nint elsewhere();\nint here() { return elsewhere(); }\n"
    files = {"src/other.cpp": "int elsewhere() { return 1; }\n", "src/other.h": "int elsewhere();\n"}
    alone = build(store, main, files)
    assert alone.diagnostics[-1].severity == "note"
    assert alone.diagnostics[-1].message == (
        "only main.cpp is compiled; what src/other.cpp defines counts where that file includes it"
    )
    assert describe_build(alone).startswith(
        "main.cpp: undefined reference to `elsewhere()'; only main.cpp is"
    )
    assert build(store, f'#include "src/other.cpp"\n{main}', files).ok
    assert "only" not in build(store, main).diagnostics[-1].message


def test_a_failed_build_is_tried_again_and_not_remembered(store: Store) -> None:
    assert not build(store, "int x = ;").cache_hit
    assert not build(store, "int x = ;").cache_hit


def test_a_warning_stays_visible_also_on_a_cache_hit(store: Store) -> None:
    source = EMPTY_PROGRAM + "\nint quiet() { int unused; return 1; }\n"
    assert build(store, source).diagnostics[0].code == "-Wunused-variable"
    assert build(store, source).diagnostics[0].severity == "warning"


def test_a_library_without_the_abi_says_which_functions_are_missing(store: Store) -> None:
    made = build(store, EMPTY_PROGRAM.replace("stitch_free", "stitch_fre"))
    assert not made.ok
    assert "does not export stitch_free" in made.diagnostics[-1].message


def test_an_undefined_reference_is_a_link_error_and_not_a_crash_at_load(store: Store) -> None:
    made = build(store, EMPTY_PROGRAM + "\nint missing(int);\nint user() { return missing(2); }\n")
    assert not made.ok
    assert any("undefined reference to" in row.message for row in made.diagnostics)


def test_nan_and_infinity_survive_the_flags(store: Store) -> None:
    probe = """
extern "C" __attribute__((visibility("default"))) int keeps_nan(float x) {
  return x != x && !(x == x) && !__builtin_isinf(x) && __builtin_isinf(x * 0 == x * 0 ? x : 1 / 0.0f);
}
"""
    made = build(store, EMPTY_PROGRAM + probe)
    assert made.artifact is not None
    library = ctypes.CDLL(made.artifact)
    library.keeps_nan.argtypes = [ctypes.c_float]
    assert library.keeps_nan(float("nan")) == 1


def test_the_recorded_command_repeats_the_library_byte_for_byte(store: Store, tmp_path: Path) -> None:
    made = build(store, EMPTY_PROGRAM)
    again = tmp_path / "again"
    program = store_program(store, {"main.cpp": EMPTY_PROGRAM})
    store.materialize(program.files, again)
    subprocess.run(made.command, cwd=again, check=True, env={"PATH": os.environ["PATH"], "LC_ALL": "C"})
    assert made.artifact is not None
    assert (again / "libprogram.so").read_bytes() == Path(made.artifact).read_bytes()


def test_a_template_bomb_is_stopped_at_the_time_limit(store: Store) -> None:
    bomb = """
template <int N, long M> struct Tower {
  static constexpr long v = Tower<N - 1, 2 * M>::v + Tower<N - 1, 2 * M + 1>::v;
};
template <long M> struct Tower<0, M> { static constexpr long v = M; };
long boom() { return Tower<40, 0>::v; }
"""
    made = build(store, bomb, time_limit_s=0.7)
    assert not made.ok
    assert made.timed_out
    assert "did not finish within 0.7 s" in made.diagnostics[-1].message
    assert not list((store.root.parent / "cache" / "programs" / "work").iterdir())


def run_in(folder: Path, command: list[str], *, time_limit_s: float = 20.0) -> Completed:
    return run_compiler(
        command, folder=folder, scratch=folder, time_limit_s=time_limit_s, readable=readable_paths(())
    )


def test_a_compiler_that_waits_for_ever_is_stopped_and_leaves_no_process(tmp_path: Path) -> None:
    fifo = tmp_path / "endless.h"
    os.mkfifo(fifo)
    (tmp_path / "main.cpp").write_text('#include "endless.h"\n', encoding="utf-8")
    ended = run_in(tmp_path, ["g++", "-c", "main.cpp"], time_limit_s=0.5)
    assert ended.timed_out
    # A reader that is still there would let this open succeed.
    with pytest.raises(OSError, match="No such device"):
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


def test_a_source_cannot_make_its_failure_look_like_a_full_disk(store: Store) -> None:
    if shutil.disk_usage(store.root.parent).free < 5 << 30:
        pytest.skip("the disk of this machine is nearly full")
    made = build(store, "#error No space left on device\n")
    assert "No space left on device" in made.diagnostics[0].message


def test_a_limit_of_file_sizes_that_a_compiler_meets_is_no_fault_of_the_program(tmp_path: Path) -> None:
    words = "main.cpp:1: fatal error: error writing to /x/cc.s: File too large"
    refused = Completed(1, words, timed_out=False, wall_s=0.1, cpu_s=0.1)
    refuse_full_disk(refused, tmp_path)  # without such a limit it is what a source made the compiler print
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, limits[1]))
    try:
        with pytest.raises(EnvironmentMissingError, match="100 KiB") as caught:
            refuse_full_disk(refused, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "ulimit -f" in caught.value.hint


def test_a_flood_of_messages_is_cut_and_survived(tmp_path: Path) -> None:
    completed = run_in(tmp_path, ["sh", "-c", "yes error | head -c 20000000; exit 1"])
    assert len(completed.output) <= 4 << 20
    assert completed.exit_code == 1


def test_the_compiler_sees_no_secret_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    completed = run_in(tmp_path, ["env"])
    assert "secret" not in completed.output


def test_a_deep_folder_with_spaces_and_unicode_works(tmp_path: Path) -> None:
    root = tmp_path / "a b" / "größe 測"
    store = Store(root / "store")
    program = store_program(
        store,
        {"src/über all.cpp": '#include "part one.h"\n' + EMPTY_PROGRAM, "src/part one.h": ""},
        main="src/über all.cpp",
    )
    made = compile_program(program, store, cache_dir=root / "cache")
    assert made.ok, made.diagnostics
    broken = store_program(store, {"src/ü.cpp": "int x = y;\n"}, main="src/ü.cpp")
    error = compile_program(broken, store, cache_dir=root / "cache").diagnostics[0]
    assert (error.file, error.line, error.source_line) == ("src/ü.cpp", 1, "int x = y;")


def test_a_program_that_uses_onednn_lists_the_library_to_preload(store: Store) -> None:
    if not find_onednn().found:
        pytest.skip("oneDNN is not installed here")
    made = build(store, "#include <dnnl.h>\n" + EMPTY_PROGRAM)
    assert made.ok
    assert [Path(path).name for path in made.libraries] == ["libdnnl.so.3"]
    assert build(store, EMPTY_PROGRAM).libraries == ()


def test_programs_that_cannot_be_compiled_by_themselves_are_refused(store: Store) -> None:
    files = store.put_files({"model.py": b"class ModelNew: pass\n"})
    program = Program(format="kernelbench", target="cpu", files=files, main="model.py")
    with pytest.raises(UsageError, match=r"model\.py cannot be compiled"):
        plan_build(program, {})


def test_a_program_whose_files_are_gone_is_a_store_error(store: Store) -> None:
    missing = SourceFile(path="main.cpp", sha256="0" * 64, size=1)
    program = Program(format="native", target="cpu", files=(missing,), main="main.cpp")
    with pytest.raises(StoreError, match="no blob"):
        compile_program(program, store, cache_dir=store.root.parent / "cache")


def test_progress_is_told_in_sentences(store: Store) -> None:
    said: list[str] = []
    build(store, EMPTY_PROGRAM, emit=said.append)
    build(store, EMPTY_PROGRAM, emit=said.append)
    assert said[0].startswith("compiling main.cpp with ")
    assert said[1] == "main.cpp: already built"
