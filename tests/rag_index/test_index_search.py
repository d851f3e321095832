"""A search finds the symbol or says that it does not, whatever the question looks like."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_rag import library_errors
from stitch_rag.build import build_index
from stitch_rag.chunks import Chunk
from stitch_rag.index_location import IndexLocation
from stitch_rag.question import LONGEST_QUESTION, MOST_WORDS, read_question
from stitch_rag.reader import Reader
from stitch_rag.search import Filters, entry, search
from stitch_rag.shorten import CHARACTERS_PER_TOKEN
from stitch_rag.sources import Root
from stitch_rag.store import IndexStore
from stitch_rag.tokens import index_words, parts, stem
from stitch_tools import __version__
from stitch_tools.errors import UsageError
from stitch_tools.models.sanitizer import SanitizerFinding
from tests.rag_index.conftest import libraries_without_driver, write_toolkit


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """The index of the made-up toolkit, which a search does not change."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library_errors, "ERROR_LIBRARIES", libraries_without_driver())
        build_index(IndexLocation(folder), roots=[write_toolkit(folder)])
    reader = Reader(folder)
    yield reader
    reader.close()


@pytest.mark.parametrize(
    ("query", "symbol"),
    [
        ("shelfPutBoxAsync", "shelfPutBoxAsync"),
        ("shelfputboxasync", "shelfPutBoxAsync"),
        ("what does shelfTakeBox() return?", "shelfTakeBox"),
        ("SHELF_TILE_32x32", "SHELF_TILE_8x8"),
        ("cublasCreate_v2", "cublasCreate"),
        ("cub::CrowdSum::Sum", "CrowdSum::Sum"),
        ("put a box on the shelf without waiting", "shelfPutBoxAsync"),
        ("no room left", "shelfFull"),
        ("extent: width and depth of a box", "shelfExtent"),
    ],
)
def test_the_first_hit_is_the_one(reader: Reader, query: str, symbol: str) -> None:
    found = reader.search(query)
    assert found.hits[0].symbol == symbol
    assert found.mode == "lexical"


def test_a_class_and_its_method_that_do_the_same_come_before_the_rest(reader: Reader) -> None:
    found = [hit.symbol for hit in reader.search("sum over a crowd of threads").hits[:2]]
    assert sorted(found) == ["CrowdSum", "CrowdSum::Sum"]


def test_a_hit_says_where_it_comes_from(reader: Reader) -> None:
    hit = reader.search("shelfPutBoxAsync").hits[0]
    assert (hit.library, hit.version, hit.source, hit.line) == ("cudart", "98.7", "CUDA toolkit", 27)
    assert hit.path.endswith("include/cuda_runtime_api.h")
    assert hit.id == "cudart/shelfPutBoxAsync@98.7"
    assert reader.entry(hit.id).text == hit.text
    assert reader.entry("cudart/shelfPutBoxAsync").id == hit.id
    assert reader.entry("shelfPutBoxAsync").id == hit.id


def test_a_name_that_does_not_exist_gets_its_neighbours(reader: Reader) -> None:
    found = reader.search("shelfPutBoxAsinc")
    assert found.confidence == "low"
    assert found.nearest[0] == "shelfPutBoxAsync"
    with pytest.raises(UsageError) as error:
        reader.entry("cudart/shelfPutBoxAsinc@98.7")
    assert "shelfPutBoxAsync" in error.value.hint


@pytest.mark.parametrize("name", ["shelfTakeBoxTurbo", "shelfTakeBoxFusedRelu", "shelfTakeBox_fast"])
def test_a_name_with_parts_that_nobody_gave_it_leads_to_the_one_without(reader: Reader, name: str) -> None:
    assert "shelfTakeBox" in reader.search(name).nearest


def test_a_name_that_exists_has_no_neighbours_however_its_parts_are_joined(place: IndexLocation) -> None:
    store = IndexStore.create()
    names = ("shelf.boxes.put_away_box", "shelf.boxes.put_away_bow")
    store.put_file("a.py", "1", [Chunk(name, "docstring", "shelf", "1", "", "Puts away.") for name in names])
    store.finish()
    found = search(store, names[0])
    assert (found.confidence, found.hits[0].symbol, found.nearest) == ("exact", names[0], ())
    assert search(store, "shelf.boxes.put_away_bot").nearest == names
    store.close()


def test_a_dotted_name_of_plain_words_is_a_name() -> None:
    store = IndexStore.create()
    names = ["shelf.wait", "shelf.wait_for_box", "torch.nn.Shelf", "shelf.tidy.box"]
    filler = [f"shelf.wait_{number}" for number in range(400)]
    store.put_file(
        "a.py",
        "1",
        [
            Chunk(
                name,
                "docstring",
                "shelf",
                "1",
                "",
                "Waits for boxes of a shelf.",
                aliases=(name.split(".")[-1],),
            )
            for name in (*filler, *names)
        ],
    )
    store.finish()
    for asked, name in (("shelf.wait", "shelf.wait"), ("nn.Shelf", "torch.nn.Shelf")):
        found = search(store, asked)
        assert (found.confidence, found.hits[0].symbol, found.nearest) == ("exact", name, ())
    assert search(store, "how long does shelf.wait wait").hits[0].symbol == "shelf.wait"
    assert search(store, "shelf.tidy").nearest == (), "a module is no slip"
    assert search(store, "box.wait").confidence != "exact", "another object's member"
    store.close()


def test_a_question_s_own_words_are_searched_for_however_many_stand_for_them() -> None:
    store = IndexStore.create()
    often = [
        Chunk(f"other{n}", "function", "a", "1", "", "A failure of a status of a function.")
        for n in range(900)
    ]
    rare = [Chunk(f"more{n}", "function", "a", "1", "", "A float of fp32.") for n in range(400)]
    store.put_file(
        "a.h", "1", [*often, *rare, Chunk("erff", "function", "a", "1", "", "Error function of a float.")]
    )
    store.finish()
    assert search(store, "error function of a float").hits[0].symbol == "erff"
    store.close()


def test_files_in_messages_are_no_names_of_code() -> None:
    asked = read_question('kernel.cu(12): error: identifier "foo" is undefined, see main.py e.g. there')
    assert (asked.names, asked.named_share) == ((), 0.0)


def test_a_question_of_a_name_that_is_not_here_is_not_answered_confidently() -> None:
    store = IndexStore.create()
    rows = [Chunk(name, "function", "a", "1", "", "Adds a box.") for name in ("boxAdd", "shelfBoxAdd")]
    store.put_file("a.h", "1", rows)
    store.finish()
    found = search(store, "crateBoxAddEx")
    assert (found.hits != (), found.confidence) == (True, "low")
    assert search(store, "how is a box added").confidence == "high"
    store.close()


def test_a_gpu_is_no_name_of_code() -> None:
    assert read_question("what is sm_90a").named_share == 0.0


def test_addresses_in_messages_are_no_words() -> None:
    assert [word.stem for word in read_question("Address 0x7f is misaligned at 0x7fbe20f").words] == [
        "address",
        "misalign",
    ]


def test_where_an_access_went_is_not_what_a_message_is_about() -> None:
    message = "========= Error: Potential WAR hazard detected at __shared__ 0x400 in block (0,0,0)"
    assert "__shared__" not in read_question(message).names
    assert "__shared__" in read_question("what is __shared__").names


def test_an_id_leads_to_everything_that_bears_it(place: IndexLocation) -> None:
    store = IndexStore.create()
    value = Chunk("boxLost", "enumerator", "cudart", "1", "boxLost = 7", "Gone.", "Gone.", "types.h", 3)
    message = Chunk(
        "boxLost", "error", "cudart", "1", "boxLost = 7", "no box", "The message: no box", "lib.so"
    )
    store.put_file("types.h", "1", [value])
    store.put_file("lib.so", "1", [message])
    store.put_file("old.h", "1", [replace(value, version="0", text="Older.")])
    store.finish()
    asked = search(store, "no box").hits[0]
    for name in (asked.id, "cudart/boxLost", "boxLost"):
        hit = entry(store, name)
        assert (hit.kind, hit.text) == ("enumerator", "Gone.\n\nlib.so\nThe message: no box")
    store.close()


def test_a_function_that_several_headers_declare_shows_all_its_overloads() -> None:
    store = IndexStore.create()
    half = Chunk(
        "boxAdd", "function", "device", "1", "half boxAdd(half*)", "Adds.", "Adds a box. " * 30, "half.h", 3
    )
    plain = replace(
        half, signature="int boxAdd(int*)\n... and 3 more overloads", brief="", text="", path="int.h"
    )
    tiny = replace(
        half, signature="char boxAdd(char*)", text="Adds a tiny box.", brief="Adds.", path="tiny.h"
    )
    for chunk in (half, plain, tiny):
        store.put_file(chunk.path, "1", [chunk])
    store.finish()
    (hit,) = search(store, "boxAdd").hits
    both = "half boxAdd(half*)\nchar boxAdd(char*)\nint boxAdd(int*)\n... and 3 more overloads"
    assert sorted(hit.signature.split("\n")) == sorted(both.split("\n"))
    whole = entry(store, hit.id)
    assert whole.signature == hit.signature
    assert whole.text.endswith("tiny.h:3\nAdds a tiny box.")
    store.close()


def test_what_is_not_there_is_not_answered_confidently(reader: Reader) -> None:
    assert reader.search("quantum chromodynamics lattice").confidence in ("low", "none")
    assert reader.search("shelf").confidence in ("exact", "high")


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "?!*()\"'",
        "AND",
        "NEAR(a b)",
        'name:"x" OR *',
        "shelf*",
        "-shelf ^shelf",
        "\x00\x1b[31m",
        "x" * 10_000,
    ],
)
def test_any_question_gets_an_answer(reader: Reader, query: str) -> None:
    found = reader.search(query)
    assert found.confidence in ("exact", "high", "low", "none")
    assert len(found.query) <= 2000


@settings(max_examples=60, deadline=None)
@given(query=st.text(max_size=60))
def test_no_question_is_syntax(shared_reader: Reader, query: str) -> None:
    shared_reader.search(query)


@pytest.fixture(scope="module")
def shared_reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """The notes alone: they need no build."""
    reader = Reader(tmp_path_factory.mktemp("empty"))
    yield reader
    reader.close()


def test_the_driver_s_name_for_the_same_thing_is_told_and_takes_no_place_of_its_own(
    toolkit: Root, place: IndexLocation
) -> None:
    (toolkit.folder / "cuda.h").write_text(
        "#define CUDA_VERSION 98070\n/** \\brief Paints a box */\nCUresult CUDAAPI cuBoxPaint(CUbox box);\n",
        encoding="utf-8",
    )
    runtime = toolkit.folder / "cuda_runtime_api.h"
    declared = "/** \\brief Paints a box */\nextern __host__ cudaError_t CUDARTAPI cudaBoxPaint(void *box);\n"
    runtime.write_text(f"{runtime.read_text(encoding='utf-8')}{declared}", encoding="utf-8")
    build_index(place, roots=[toolkit])
    reader = Reader(place.folder.parent)
    found, asked = reader.search("paint a box"), reader.search("driver call that paints a box")
    reader.close()
    assert (found.hits[0].symbol, found.hits[0].twin) == ("cudaBoxPaint", "cuBoxPaint")
    assert "cuBoxPaint" not in [hit.symbol for hit in found.hits]
    assert (asked.hits[0].symbol, asked.hits[0].twin) == ("cuBoxPaint", "cudaBoxPaint")


def test_filters_keep_what_they_name(reader: Reader) -> None:
    found = reader.search("box shelf", filters=Filters(kinds=("enumerator",)))
    assert {hit.kind for hit in found.hits} == {"enumerator"}
    found = reader.search("create handle", filters=Filters(libraries=("cublas",)))
    assert {hit.library for hit in found.hits} == {"cublas"}
    with pytest.raises(UsageError, match="no kind 'spell'"):
        reader.search("box", filters=Filters(kinds=("spell",)))
    shouted = Filters(kinds=("Function",), libraries=("cuBLAS",))
    assert reader.search("create handle", filters=shouted).hits[0].symbol == "cublasCreate"


def test_a_library_that_is_not_here_is_told_with_those_that_are(reader: Reader) -> None:
    found = reader.search("put box shelf", filters=Filters(libraries=("triton", "cudart")))
    (said,) = found.notices
    assert said.startswith("library 'triton' is not in this index, which has compiler, cub, cublas, cudart,")
    assert found.hits[0].symbol == "shelfPutBoxAsync"


def test_a_version_that_is_absent_is_told(reader: Reader) -> None:
    found = reader.search("put box shelf", filters=Filters(version="12.4"))
    assert found.notices == ("cudart 12.4 is not installed here; there is 98.7",)
    assert not any(hit.library == "cudart" for hit in found.hits)
    assert reader.search("put box shelf", filters=Filters(version="98")).hits[0].symbol == "shelfPutBoxAsync"


def test_a_library_that_is_absent_is_told_once(reader: Reader) -> None:
    found = reader.search("copy memory", filters=Filters(libraries=("cublas_lt",)))
    assert found.hits == ()
    (said,) = found.notices
    assert "library 'cublas_lt' is not in this index" in said
    assert "cudart" in said


def test_notes_for_other_gpus_are_left_out(reader: Reader) -> None:
    query = "copy from pinned host memory"
    assert reader.search(query, filters=Filters(architecture="sm_90")).hits[0].kind == "note"
    assert all(hit.kind != "note" for hit in reader.search(query, filters=Filters(architecture="sm_70")).hits)


@pytest.mark.parametrize("spelled", ["90", "9.0", "compute_90", "SM_90", "sm90"])
def test_an_architecture_may_be_spelled_in_other_ways(shared_reader: Reader, spelled: str) -> None:
    query = "choose between wmma, mma.sync and wgmma"
    wanted = shared_reader.search(query, filters=Filters(architecture="sm_90")).hits
    assert shared_reader.search(query, filters=Filters(architecture=spelled)).hits == wanted


def test_instructions_of_newer_gpus_are_left_out(shared_reader: Reader) -> None:
    def symbols(architecture: str) -> set[str]:
        hits = shared_reader.search("wgmma mma.sync", filters=Filters(architecture=architecture)).hits
        return {hit.symbol for hit in hits}

    assert {"wgmma.mma_async", "mma.sync"} <= symbols("sm_90a")
    assert "wgmma.mma_async" not in symbols("sm_80")
    assert "mma.sync" in symbols("sm_80")
    assert "mma.sync" not in symbols("sm_75")


def test_a_name_in_another_version_than_asked_for_is_not_answered_confidently(reader: Reader) -> None:
    assert reader.search("shelfPutBoxAsync", filters=Filters(version="98")).confidence == "exact"
    found = reader.search("shelfPutBoxAsync", filters=Filters(version="1"))
    assert found.confidence in ("low", "none")
    assert found.notices == ("cudart 1 is not installed here; there is 98.7",)


@pytest.mark.parametrize("spelled", ["hopper", "sm", "9", "sm_90x"])
def test_what_is_no_architecture_is_refused(shared_reader: Reader, spelled: str) -> None:
    with pytest.raises(UsageError, match="no GPU architecture"):
        shared_reader.search("pinned memory", filters=Filters(architecture=spelled))


@pytest.mark.parametrize("tokens", [1, 40, 200, 1000, 100_000])
def test_the_size_bound_holds_and_the_first_hit_stays(reader: Reader, tokens: int) -> None:
    found = reader.search("put a box on the shelf", max_tokens=tokens)
    assert found.hits
    size = sum(len(hit.signature) + len(hit.summary) + len(hit.text) for hit in found.hits)
    assert size <= tokens * CHARACTERS_PER_TOKEN
    assert (len(found.hits) < 8) == any("did not fit" in notice for notice in found.notices)


@pytest.mark.parametrize(("tokens", "count"), [(0, 5), (-3, 5), (100, 0), (100, 1000)])
def test_bounds_without_sense_are_refused(reader: Reader, tokens: int, count: int) -> None:
    with pytest.raises(UsageError):
        reader.search("box", max_tokens=tokens, count=count)


def test_of_a_long_question_the_beginning_is_read() -> None:
    words = [f"word{number}" for number in range(4000)]
    question = read_question(" ".join(words))
    assert len(question.text) == LONGEST_QUESTION
    assert len(question.words) == MOST_WORDS


@pytest.mark.parametrize(
    ("query", "slug"),
    [
        ("every thread bumps the same counter and it gets slower", "atomics"),
        ("the last wave leaves most multiprocessors idle", "persistent-kernels"),
    ],
)
def test_a_symptom_leads_to_the_note_in_whose_words_it_is_asked(
    shared_reader: Reader, query: str, slug: str
) -> None:
    hits = shared_reader.search(query).hits
    assert hits[0].path == f"stitch_rag/notes/{slug}.md"
    assert "serialises: contention on one hot address" not in hits[0].text


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("when does a CUDA graph help tiny kernels", "Replay a fixed sequence of launches as a CUDA graph"),
        ("is TMA worth it for small tiles", "Bulk tensor copies with TMA on Hopper"),
        ("when should I use shared memory tiling", "Tile a matrix product through shared memory"),
        ("does pinned memory help", "Copy from pinned host memory"),
    ],
)
def test_a_note_answers_whether_its_technique_pays_among_many_names_of_it(
    tmp_path: Path, query: str, note: str
) -> None:
    names = ("GraphSmallKernelHelp", "TmaSmallTile", "SharedMemoryTiling", "PinnedMemory", "GraphMin")
    declared = "".join(
        f"/** helps: {name} number {i}; worth much */\nint cuda{name}{i}x(int a);\n"
        for name in names
        for i in range(60)
    )
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_runtime_api.h").write_text(declared, encoding="utf-8")
    place = IndexLocation(tmp_path / "cache")
    build_index(place, roots=[Root(tmp_path / "include", "CUDA toolkit")])
    reader = Reader(place.folder.parent)
    assert reader.search(query).hits[0].symbol == note
    reader.close()


def test_whether_something_pays_is_no_word_of_the_question() -> None:
    question = read_question("when do CUDA graphs pay off")
    assert [word.stem for word in question.words] == ["cuda", "graph"]
    assert question.asks_advice
    assert not read_question("access property for data that should stay in L2").asks_advice


def test_what_no_header_explains_is_answered_in_our_words(shared_reader: Reader) -> None:
    hit = shared_reader.search("keep the compiler from inlining a device function").hits[0]
    assert (hit.symbol, hit.library) == ("__noinline__", "language")
    assert shared_reader.search("mbarrier_expect_tx").hits[0].symbol == "cuda::ptx::mbarrier_arrive_expect_tx"


def test_the_hits_for_diagnostics_come_in_order_each_question_once(reader: Reader) -> None:
    found = reader.resolve(["CUDA identifier shelfPutBoxAsinc is undefined", "", "shelfFull", "shelfFull"])
    assert [row.query for row in found] == ["CUDA identifier shelfPutBoxAsinc is undefined", "shelfFull"]
    assert found[0].nearest == ("shelfPutBoxAsync",)


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        ("cudaMemcpyAsync", ["cuda", "memcpy", "async"]),
        ("CUBLASLT_MATMUL_DESC_EPILOGUE", ["cublas", "lt", "matmul", "desc", "epilogue"]),
        ("cublasLtMatmul", ["cublas", "lt", "matmul"]),
        ("CUDA_R_16BF", ["cuda", "r", "16bf"]),
        ("__shfl_down_sync", ["shfl", "down", "sync"]),
        ("SHELF_TILE_64x128", ["shelf", "tile", "64x128"]),
        ("float4", ["float", "4"]),
        ("numSMs", ["num", "sm"]),
        ("surf2Dwrite", ["surf", "2d", "write"]),
        ("cudnnSetTensor4dDescriptor", ["cudnn", "set", "tensor", "4d", "descriptor"]),
        ("___", []),
    ],
)
def test_identifiers_fall_into_their_parts(identifier: str, expected: list[str]) -> None:
    assert list(parts(identifier)) == expected


@pytest.mark.parametrize(
    "family",
    [
        ("copy", "copies", "copying", "copied"),
        ("allocate", "allocation", "allocated", "allocating", "allocates"),
        ("synchronize", "synchronization", "synchronise", "synchronizing"),
        ("map", "mapped", "mapping", "maps"),
        ("launch", "launches", "launching"),
        ("half", "halves"),
        ("write", "written", "wrote", "writing"),
        ("cublas", "cublas"),
    ],
)
def test_inflections_of_a_word_share_a_stem(family: tuple[str, ...]) -> None:
    assert len({stem(word) for word in family}) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SMs and CTAs", "sm and cta"),
        ("the JIT's log", "the jit log"),
        ("cuBLASLt and PyTorch", "cublaslt cublas lt and pytorch torch"),
        ("NaN", "nan"),
    ],
)
def test_acronyms_and_products_are_words_and_not_names_of_code(text: str, expected: str) -> None:
    assert index_words(text) == expected
    assert read_question(text).named_share == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a shelf, e.g. a wide one", ["shelf", "wide"]),
        ("bitwise OR over a shelf", ["bitwiz", "or", "shelf"]),
        ("between 0.0 and 0.5", ["0", "0_5"]),
        ("CUshelfBox", ["cushelfbox", "cu", "shelf", "box"]),
        ("boxHtoD", ["boxhtod", "box", "htod"]),
        ("rsqrtf_fast", ["rsqrtf_fast", "rsqrt", "fast"]),
    ],
)
def test_a_question_falls_into_these_words(text: str, expected: list[str]) -> None:
    assert [word.stem for word in read_question(text).words] == expected


def test_filler_counts_less_than_what_is_asked_for() -> None:
    weights = {word.stem: word.weight for word in read_question("still how many other kernels").words}
    assert "still" not in weights
    assert weights["many"] == weights["other"] < weights["kernel"]


def test_the_name_of_a_library_counts_as_one_word_though_it_has_parts() -> None:
    weights = {word.stem: word.weight for word in read_question("multiply with cublasLt").words}
    assert weights["cublaslt"] == weights["cublas"] == weights["lt"] == pytest.approx(1 / 3)
    assert [word.weight for word in read_question("cublasLt").words] == [1.0, 1.0, 1.0]


@given(st.text(max_size=80))
def test_index_words_are_lower_case_and_hold_no_quotes(text: str) -> None:
    words = index_words(text)
    assert words == words.lower()
    assert '"' not in words


def test_what_ships_with_this_package_has_its_version(shared_reader: Reader) -> None:
    for name, library in (("pinned-memory", "notes"), ("threadIdx", "language")):
        hit = shared_reader.entry(name)
        assert (hit.library, hit.version) == (library, f"stitch-mcp {__version__}")
    (message, *_) = shared_reader.search("undefined reference", filters=Filters(kinds=("diagnostic",))).hits
    assert (message.library, message.version) == ("compiler", f"stitch-mcp {__version__}")


@pytest.mark.parametrize("tokens", [200, 600, 2000])
def test_long_names_and_paths_count_for_the_size_bound(tokens: int) -> None:
    store = IndexStore.create()
    for number in range(20):
        names = tuple(f"shelfBoxOfTheLongName{number}Spelled{other}" for other in range(15))
        path = f"/opt/{'folder/' * 15}shelf{number}.h"
        text = "Puts a box on the shelf. " * 20
        chunk = Chunk(f"boxPut{number}", "function", "shelf", "1", "", "Puts.", text, path, 3, aliases=names)
        store.put_file(path, "1", [chunk])
    store.finish()
    found = search(store, "put a box on the shelf", count=20, max_tokens=tokens)
    store.close()
    said = [part for hit in found.hits for part in (hit.id, hit.symbol, hit.path, hit.text, *hit.aliases)]
    assert sum(map(len, said)) <= tokens * CHARACTERS_PER_TOKEN or len(found.hits) == 1
    assert len(found.hits) == 20 or "did not fit" in found.notices[-1]


@pytest.mark.parametrize(
    ("query", "slug"),
    [
        ("C++ vector is not a member of std", "not-a-member"),
        ("CUDA namespace std has no member cout", "not-a-member"),
        ("CUDA namespace cooperative_groups has no member reduce", "undefined-identifier"),
        ("CUDA expression must be a modifiable lvalue", "not-modifiable"),
        ("C++ assignment of read-only location", "not-modifiable"),
        ("CUDA incomplete type int is not allowed", "incomplete-type"),
        ("CUDA expression must have a constant value", "not-constant"),
        (
            "CUDA more than one instance of overloaded function max matches the argument list",
            "ambiguous-overload",
        ),
        ("C++ call of overloaded o int is ambiguous", "ambiguous-overload"),
        ("CUDA no instance of overloaded function pow matches the argument list", "no-overload"),
        ("CUDA variable sum has already been defined previous definition at line", "redefinition"),
        ("C++ redefinition of void r", "redefinition"),
        ("CUDA variable p is used before its value is set", "used-before-set"),
        ("CUDA missing return statement at end of non-void function f", "missing-return"),
        ("C++ control reaches end of non-void function", "missing-return"),
        (
            "CUDA __device__ annotation is ignored on a non-virtual function S that is explicitly defaulted "
            "on its first declaration",
            "annotation-ignored",
        ),
        ("CUDA nvlink Undefined reference to _Z6helperf in", "device-link"),
        ("CUDA Unresolved extern function _Z6helperf", "unresolved-extern"),
        ("C++ undefined reference to missing int", "undefined-reference"),
        (
            "C++ multiple definition of twice int b1.cudafe1.cpp text+0x82 first defined here",
            "multiple-definition",
        ),
        ("CUDA integer conversion resulted in a change of sign", "value-changed"),
        ("CUDA integer conversion resulted in truncation", "value-changed"),
        ("CUDA argument of type int is incompatible with parameter of type float", "cannot-convert"),
        ("CUDA too few arguments in function call", "argument-count"),
        ("CUDA no suitable constructor exists to convert from int to cudaMemLocation", "memory-location"),
        ("C++ could not convert from int to cudaMemLocation", "memory-location"),
        ("CUDA class cudaDeviceProp has no member clockRate", "device-properties"),
        ("CUDA class Shelf has no member box", "no-member"),
        ("CUDA too few arguments in function call cuCtxCreate_v4", "context-create"),
        (
            "CUDA argument of type int is incompatible with parameter of type const cudaGraphEdgeData",
            "graph-signatures",
        ),
        ("CUDA incomplete type void is not allowed", "incomplete-void"),
        ("CUDA loop is not reachable", "unreachable"),
        *(
            (SanitizerFinding(rule=rule, severity="fatal", message="").doc_query, slug)
            for rule, slug in {
                "signed-integer-overflow": "sanitizer-undefined",
                "invalid-shift-exponent": "sanitizer-undefined",
                "integer-divide-by-zero": "sanitizer-undefined",
                "null-pointer-use": "sanitizer-undefined",
                "double-free": "sanitizer-free",
                "alloc-dealloc-mismatch": "sanitizer-free",
                "heap-use-after-free": "sanitizer-out-of-bounds",
                "insufficient-object-size": "sanitizer-out-of-bounds",
                "memory-error": "sanitizer-out-of-bounds",
                "memcpy-param-overlap": "sanitizer-out-of-bounds",
                "uninitialised-read": "sanitizer-uninitialized",
                "invalid-barrier": "sanitizer-barrier",
                "leak": "sanitizer-leak",
            }.items()
        ),
    ],
)
def test_what_compilers_and_sanitizers_say_leads_to_its_advice(
    shared_reader: Reader, query: str, slug: str
) -> None:
    hit = shared_reader.search(query).hits[0]
    assert slug in hit.aliases


def test_words_that_only_a_way_to_ask_holds_are_no_sure_hit(reader: Reader) -> None:
    found = reader.search("foo")  # an example's name in compiler messages
    assert found.hits
    assert found.confidence == "low"


@pytest.mark.parametrize(
    "question", ["speed up my softmax", "make a softmax fast", "my softmax is too slow", "softmax kernel"]
)
def test_who_wants_a_thing_faster_gets_the_note_on_it(reader: Reader, question: str) -> None:
    assert reader.search(question).hits[0].symbol == "Softmax in one pass with a running maximum"


def test_what_a_newer_gpu_lacks_comes_behind_what_replaces_it() -> None:
    store = IndexStore.create()
    old = Chunk(
        "__shout", "function", "device", None, brief="Gone on sm_70 and newer: call __shout_sync.", line=1
    )
    new = Chunk("__shout_sync", "function", "device", None, brief="Shout to the lanes of a warp.", line=2)
    store.put_file("warp.h", "", [old, new])
    store.finish()
    assert [hit.symbol for hit in search(store, "warp shout").hits] == ["__shout_sync", "__shout"]
    assert search(store, "__shout").hits[0].symbol == "__shout"


def test_a_name_in_several_libraries_is_shown_with_the_ids_of_the_others() -> None:
    store = IndexStore.create()
    rows = [Chunk("copy_async", "function", library, "1", brief=f"Copies in {library}.") for library in "abc"]
    for row in rows:
        store.put_file(f"{row.library}.h", "", [row])
    store.finish()
    first = entry(store, "copy_async")
    others = [row.chunk_id for row in rows if row.chunk_id != first.id]
    assert first.text.endswith(f"Also of this name: {', '.join(others)}")
    assert "Also of this name" not in entry(store, rows[1].chunk_id).text


def test_a_question_that_names_a_library_of_which_nothing_is_known_is_told_so(reader: Reader) -> None:
    found = reader.search("how do I make triton forget its tuned configurations")
    assert any(notice.startswith("library 'triton' is not in this index") for notice in found.notices)
    assert not any(
        "is not in this index" in notice for notice in reader.search("stow crates on a rack").notices
    )
