"""The index is built from what is there, goes on where it stopped, and is swapped in whole."""

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_rag import library_errors
from stitch_rag.build import build_index, clear_index, index_status
from stitch_rag.chunks import Chunk
from stitch_rag.index_location import IndexLocation
from stitch_rag.inputs import header_inputs
from stitch_rag.library_errors import find_libraries
from stitch_rag.reader import DAMAGED, HOW_TO_BUILD, Reader
from stitch_rag.sources import Root, find_headers, find_roots, library_of, read_version
from stitch_rag.store import IndexStore
from stitch_tools.errors import LockedError, StoreError, UsageError
from stitch_tools.storage.locks import FileLock
from tests.rag_index.conftest import libraries_without_driver


def build_elsewhere(folder: str, include: str) -> None:
    # Another process, which the fixture does not reach.
    library_errors.ERROR_LIBRARIES = libraries_without_driver()
    build_index(IndexLocation(Path(folder)), roots=[Root(Path(include), "CUDA toolkit")])


def test_headers_are_found_with_library_and_version(toolkit: Root) -> None:
    found = {header.relative: header for header in find_headers([toolkit])}
    assert found["cuda_runtime_api.h"].library == "cudart"
    assert found["cuda_runtime_api.h"].version == "98.7"
    assert (found["cublas_api.h"].library, found["cublas_api.h"].version) == ("cublas", "77.3.1")
    assert "generated_cuda_meta.h" not in found


def test_toolkit_wheels_and_conda_are_looked_through_in_that_order(toolkit: Root, tmp_path: Path) -> None:
    packages = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    wheel = packages / "nvidia" / "cu99" / "include"
    conda = tmp_path / "conda" / "include"
    for folder in (wheel, conda):
        folder.mkdir(parents=True)
        (folder / "cublasLt.h").write_text("int lt(void);", encoding="utf-8")
    env = {
        "CUDA_HOME": str(toolkit.folder.parent),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": "/nowhere",
    }
    (toolkit.folder / "cuda_runtime.h").write_text("", encoding="utf-8")
    folders = [root.folder for root in find_roots([tmp_path / "env"], env)]
    assert folders[0] == toolkit.folder
    assert folders.index(wheel) < folders.index(conda)
    assert len(folders) == len(set(folders))


@pytest.mark.parametrize(
    "packages",
    [
        "lib/python3.12/site-packages",
        "lib64/python3.12/site-packages",
        "lib/python3/dist-packages",
        "local/lib/python3.12/dist-packages",
        "Lib/site-packages",
    ],
)
@pytest.mark.parametrize("header", ["nvidia/cudnn/include/cudnn.h", "nvidia/cu99/include/cccl/cub/cub.cuh"])
def test_wheels_are_found_wherever_an_interpreter_keeps_its_packages(
    tmp_path: Path, packages: str, header: str
) -> None:
    path = tmp_path / packages / header
    path.parent.mkdir(parents=True)
    path.write_text("int shelf(void);", encoding="utf-8")
    env = {"CUDA_HOME": str(tmp_path / "none")}
    for place in (tmp_path, tmp_path / packages):
        assert any(path.is_relative_to(root.folder) for root in find_roots([place], env))


def test_headers_of_a_conda_environment_that_is_not_active_are_found(tmp_path: Path) -> None:
    include = tmp_path / "targets" / "x86_64-linux" / "include"
    include.mkdir(parents=True)
    (include / "nccl.h").write_text("int shelf(void);", encoding="utf-8")
    env = {"CUDA_HOME": str(tmp_path / "none")}
    assert include not in [root.folder for root in find_roots([tmp_path], env)]
    (tmp_path / "conda-meta").mkdir()
    assert include in [root.folder for root in find_roots([tmp_path], env)]


def test_of_the_system_s_headers_only_those_of_libraries_beside_the_toolkit_count(tmp_path: Path) -> None:
    for name in ("cudnn.h", "cuda_runtime_api.h", "nccl.h"):
        (tmp_path / name).write_text("int shelf(void);", encoding="utf-8")
    roots = find_roots([], {"CUDA_HOME": str(tmp_path / "none")}, system=[tmp_path])
    found = [header for header in find_headers(roots) if header.source == "system"]
    assert {header.library for header in found} == {"cudnn", "nccl"}


@pytest.mark.parametrize(
    ("text", "prefix", "version"),
    [
        ("#define CUDA_VERSION 13000", "CUDA_VERSION", "13.0"),
        ("#define CUDA_VERSION 12040", "CUDA_VERSION", "12.4"),
        ("#define NCCL_MAJOR 2\n#define NCCL_MINOR 29\n#define NCCL_PATCH 3", "NCCL", "2.29.3"),
        ("#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 2\n#define CUDNN_PATCHLEVEL 1", "CUDNN", "9.2.1"),
        ("#define CUB_VERSION 300001", "CUB_VERSION", "3.0.1"),
        ("nothing", "CUDA_VERSION", None),
    ],
)
def test_versions_are_read_from_macros(text: str, prefix: str, version: str | None) -> None:
    assert read_version(text, prefix) == version


def test_a_file_of_no_known_library_is_not_indexed() -> None:
    assert library_of("vulkan.h") is None
    assert library_of("cccl/cub/block/specializations/x.cuh") is None
    assert library_of("cublasLt.h") == "cublaslt"
    assert library_of("cooperative_groups/details/reduce.h") == "cooperative_groups"
    assert library_of("cooperative_groups/details/helpers.h") is None
    assert library_of("cutlass/gemm/collective/collective_builder.hpp") == "cutlass"
    assert library_of("cutlass/pipeline/sm90_pipeline.hpp") == "cutlass"
    assert library_of("cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized.hpp") is None
    assert library_of("cccl/thrust/iterator/counting_iterator.h") == "thrust"


def test_a_second_build_reads_only_what_changed(toolkit: Root, place: IndexLocation) -> None:
    first = build_index(place, roots=[toolkit])
    assert first.read == first.files == 8
    again = build_index(place, roots=[toolkit])
    assert (again.read, again.removed, again.fingerprint) == (0, 0, first.fingerprint)
    changed = toolkit.folder / "driver_types.h"
    changed.write_text(changed.read_text(encoding="utf-8") + "\nint shelfNew(void);\n", encoding="utf-8")
    (toolkit.folder / "cccl/cub/block/crowd_sum.cuh").unlink()
    assert index_status(place, roots=[toolkit]).changed[0].endswith("crowd_sum.cuh")
    third = build_index(place, roots=[toolkit])
    assert (third.read, third.removed) == (1, 1)
    reader = Reader(place.folder.parent)
    assert reader.search("shelfNew").hits[0].symbol == "shelfNew"
    assert reader.search("CrowdSum").confidence != "exact"
    assert reader.search("shelfLost").hits[0].symbol == "shelfLost", "what did not change stays"
    reader.close()
    assert index_status(place, roots=[toolkit]).fresh


def test_of_two_headers_that_declare_a_function_the_one_that_explains_it_is_shown(
    toolkit: Root, place: IndexLocation
) -> None:
    echo = toolkit.folder / "cuda_device_runtime_api.h"
    echo.write_text("extern int shelfTakeBox(void **box);\n", encoding="utf-8")
    build_index(place, roots=[toolkit])
    reader = Reader(place.folder.parent)
    assert reader.search("shelfTakeBox").hits[0].summary.startswith("Takes a box from a shelf")
    assert reader.entry("shelfTakeBox").summary.startswith("Takes a box from a shelf")
    runtime = toolkit.folder / "cuda_runtime_api.h"
    runtime.write_text("#define CUDART_VERSION 98070\n", encoding="utf-8")
    build_index(place, roots=[toolkit])
    assert reader.entry("shelfTakeBox").path == str(echo)
    reader.close()


def test_a_build_that_was_killed_goes_on_from_where_it_stopped(toolkit: Root, place: IndexLocation) -> None:
    inputs = header_inputs(find_headers([toolkit]))
    place.folder.mkdir(parents=True)
    half = IndexStore.create(place.building)
    half.put_file(inputs[0].place, inputs[0].sha256, inputs[0].read())
    half.close()
    assert index_status(place, roots=[toolkit]).half_built
    done = build_index(place, roots=[toolkit])
    assert done.read == done.files - 1
    assert not index_status(place, roots=[toolkit]).half_built


def test_files_that_are_stored_together_are_all_there_or_none(place: IndexLocation) -> None:
    store = IndexStore.create()

    def stopped() -> None:
        with store.together():
            store.put_file("a", "1", [Chunk("shelfA", "function", "cudart", None)])
            raise StoreError("stopped", hint="none")

    with pytest.raises(StoreError):
        stopped()
    assert (store.files(), store.count(), store.by_name("shelfA")) == ({}, 0, [])
    with store.together():
        store.put_file("a", "1", [Chunk("shelfA", "function", "cudart", None)])
    assert store.files() == {"a": "1"}
    store.close()


def test_an_input_that_fails_half_way_leaves_none_of_its_entries(toolkit: Root, place: IndexLocation) -> None:
    place.folder.mkdir(parents=True)
    store = IndexStore.create(place.building)
    chunks = header_inputs(find_headers([toolkit]))[0].read()

    def broken():
        yield chunks[0]
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        store.put_file("header:x", "1", broken())
    assert (store.files(), store.count()) == ({}, 0)
    store.close()


def test_a_damaged_or_older_file_is_built_anew(toolkit: Root, place: IndexLocation) -> None:
    place.folder.mkdir(parents=True)
    place.index.write_bytes(b"SQLite format 3\0 but not really")
    place.building.write_bytes(b"\0" * 5000)
    reader = Reader(place.folder.parent)
    assert reader.search("pinned memory").mode == "notes"
    assert build_index(place, roots=[toolkit]).read == 8
    with sqlite3.connect(place.index) as db:
        db.execute("UPDATE meta SET value = '0' WHERE key = 'schema'")
    db.close()
    assert not index_status(place, roots=[toolkit]).exists
    assert build_index(place, roots=[toolkit]).read == 8
    reader.close()


def emptied(path: Path, share: float) -> None:
    """Zeros in place of some pages behind this share of the file."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(int(size * share) // 4096 * 4096)
        file.write(bytes(min(200_000, size - file.tell())))


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.8])
def test_an_index_that_is_damaged_inside_gives_way_to_the_notes_until_a_build_mends_it(
    share: float, toolkit: Root, place: IndexLocation
) -> None:
    build_index(place, roots=[toolkit])
    emptied(place.index, share)
    reader = Reader(place.folder.parent)
    queries = (
        "shared memory bank conflicts",
        "shelfTakeBox",
        "shelfTakeBx",
        "box on a shelf",
        "softmax of rows",
    )
    answers = [reader.search(query) for query in queries]
    assert all(found.mode == "lexical" or found.notices == (DAMAGED,) for found in answers)
    assert answers[-1].mode == "notes"
    assert reader.entry("bank-conflicts").kind == "note"
    index_status(place, roots=[toolkit])
    assert build_index(place, roots=[toolkit]).read == 8
    assert (found := reader.search("shelfTakeBox")).confidence == "exact", found
    assert index_status(place, roots=[toolkit]).fresh
    reader.close()


def test_a_half_built_index_that_is_damaged_is_made_anew(toolkit: Root, place: IndexLocation) -> None:
    build_index(place, roots=[toolkit])
    place.index.rename(place.building)
    emptied(place.building, 0.3)
    assert build_index(place, roots=[toolkit]).read == 8
    assert index_status(place, roots=[toolkit]).fresh


def test_readers_see_the_new_index_without_being_opened_again(toolkit: Root, place: IndexLocation) -> None:
    reader = Reader(place.folder.parent)
    before = reader.search("shelfPutBoxAsync")
    assert before.mode == "notes"
    assert before.notices == (HOW_TO_BUILD,)
    with pytest.raises(UsageError, match="no entry") as absent:
        reader.entry("cudart/shelfPutBoxAsync@98.7")
    assert absent.value.hint.startswith(HOW_TO_BUILD)
    build_index(place, roots=[toolkit])
    assert reader.search("shelfPutBoxAsync").hits[0].version == "98.7"
    clear_index(place)
    assert reader.search("shelfPutBoxAsync").mode == "notes"
    reader.close()


def test_two_builders_take_turns(toolkit: Root, place: IndexLocation) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = (str(place.folder.parent), str(toolkit.folder))
    builders = [context.Process(target=build_elsewhere, args=arguments) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(60)
    assert [builder.exitcode for builder in builders] == [0, 0]
    assert index_status(place, roots=[toolkit]).fresh


def test_clearing_while_a_build_goes_on_is_refused(toolkit: Root, place: IndexLocation) -> None:
    build_index(place, roots=[toolkit])
    with FileLock(place.lock, purpose="index build"), pytest.raises(LockedError, match="index build"):
        clear_index(place)
    assert clear_index(place) > 10_000
    assert not place.folder.exists()
    assert clear_index(place) == 0


@pytest.mark.parametrize("anew", [True, False])
def test_a_full_disk_is_an_error_that_says_what_to_do_and_keeps_the_old_index(
    anew: bool, toolkit: Root, place: IndexLocation
) -> None:
    build_index(place, roots=[toolkit])
    code = (
        "import sys, resource, signal; from pathlib import Path\n"
        "from stitch_rag.build import build_index; from stitch_rag.index_location import IndexLocation\n"
        "from stitch_rag.sources import Root; from stitch_tools.errors import StoreError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "place, roots = IndexLocation(Path(sys.argv[1])), [Root(Path(sys.argv[2]), 'x')]\n"
        f"try: build_index(place, roots=roots, anew={anew})\n"
        "except StoreError as error: print('refused:', error.hint)\n"
    )
    command = [sys.executable, "-c", code, str(place.folder.parent), str(toolkit.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("refused: free some space"), done.stderr
    assert anew or not place.building.exists(), "half a copy would keep the disk full"
    assert index_status(place, roots=[toolkit]).exists
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 60_000


def test_an_unwritable_cache_is_an_error_that_names_it(toolkit: Root, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match=r"cannot write .*file"):
        build_index(IndexLocation(tmp_path / "file"), roots=[toolkit])


def test_without_any_toolkit_the_notes_are_indexed_and_the_report_says_so(place: IndexLocation) -> None:
    report = build_index(place, roots=[])
    assert {row.library for row in report.libraries} == {"notes", "compiler", "language"}
    assert "CUDA_HOME" in report.notices[0]


def test_two_toolkits_are_both_there_and_one_hit_names_both(
    toolkit: Root, place: IndexLocation, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "include"
    other.mkdir(parents=True)
    for name in ("cuda_runtime_api.h", "driver_types.h"):
        text = (toolkit.folder / name).read_text(encoding="utf-8").replace("98070", "97000")
        (other / name).write_text(text, encoding="utf-8")
    build_index(place, roots=[toolkit, Root(other, "conda")])
    reader = Reader(place.folder.parent)
    hits = [hit for hit in reader.search("shelfTakeBox").hits if hit.symbol == "shelfTakeBox"]
    assert [(hit.version, hit.also_versions) for hit in hits] == [("98.7", ("97.0",))]
    reader.close()


def test_a_toolkit_and_wheels_of_the_same_version_are_indexed_once(
    toolkit: Root, place: IndexLocation, tmp_path: Path
) -> None:
    before = build_index(place, roots=[toolkit])
    wheel = tmp_path / "nvidia" / "cu13" / "include"
    shutil.copytree(toolkit.folder, wheel)
    (wheel / "curand.h").write_text(
        "#define CURAND_VER_MAJOR 9\n#define CURAND_VER_MINOR 1\n/** One more. */\nint shelfRandom(void);\n",
        encoding="utf-8",
    )
    after = build_index(place, roots=[toolkit, Root(wheel, "wheel nvidia/cu13")])
    # CUB's header says no version, so that nobody knows whether it is the same.
    of_a_version = [row for row in before.libraries if row.library in ("cudart", "cublas")]
    assert of_a_version == [row for row in after.libraries if row.library in ("cudart", "cublas")]
    assert "curand" in {row.library for row in after.libraries}
    reader = Reader(place.folder.parent)
    assert {hit.source for hit in reader.search("shelfTakeBox").hits if hit.library == "cudart"} == {
        toolkit.source
    }
    reader.close()


def test_progress_and_report_can_be_sent(toolkit: Root, place: IndexLocation) -> None:
    said: list[str] = []
    report = build_index(place, roots=[toolkit], progress=said.append)
    assert "8 files, 8 of them to read" in said[0]
    assert json.loads(report.canonical_json())["chunks"] == report.chunks


def test_a_link_to_nowhere_and_a_pipe_among_the_headers_are_passed_over(toolkit: Root) -> None:
    (toolkit.folder / "cuda_fp16.h").symlink_to(toolkit.folder / "nowhere.h")
    (toolkit.folder / "cuda.h").symlink_to(toolkit.folder / "nowhere.h")
    os.mkfifo(toolkit.folder / "nccl.h")
    found = {header.relative for header in find_headers([toolkit])}
    assert "cuda_runtime_api.h" in found
    assert found.isdisjoint(("cuda_fp16.h", "cuda.h", "nccl.h"))


def test_a_runtime_library_that_is_a_link_to_nowhere_is_none(toolkit: Root, place: IndexLocation) -> None:
    library = toolkit.folder.parent / "lib64" / "libcudart.so"
    library.parent.mkdir()
    library.symlink_to(library.parent / "nowhere.so")
    assert find_libraries([toolkit], []) == []
    assert build_index(place, roots=[toolkit]).read == 8


def opened_files(process: int | None) -> set[Path]:
    """What a process holds open now."""
    found: set[Path] = set()
    for row in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(row.readlink())
    return found


def test_a_builder_that_waited_while_the_folder_was_cleared_builds_in_the_new_one(
    toolkit: Root, place: IndexLocation
) -> None:
    build_index(place, roots=[toolkit])
    context = multiprocessing.get_context("spawn")
    with FileLock(place.lock, purpose="another build"):
        builder = context.Process(
            target=build_elsewhere, args=(str(place.folder.parent), str(toolkit.folder))
        )
        builder.start()
        while place.lock not in opened_files(builder.pid):
            assert builder.is_alive()
        place.folder.rename(place.folder.with_name("cleared"))
    builder.join(60)
    assert builder.exitcode == 0
    assert index_status(place, roots=[toolkit]).fresh


def test_a_toolkit_that_is_named_and_not_there_is_told(
    place: IndexLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    assert f"no CUDA headers in {tmp_path / 'nowhere'}" in index_status(place).notices[0]
