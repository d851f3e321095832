"""Headers are read into declarations with their comments, whatever the headers look like."""

import itertools
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_rag.chunks import Chunk
from stitch_rag.extract.comments import read_comment
from stitch_rag.extract.declarations import declarations
from stitch_rag.extract.lexer import tokens
from stitch_rag.extract.merge import HeaderOrigin, header_chunks
from stitch_rag.extract.ptx import GENERATED, as_declarations
from stitch_rag.sources import Root
from tests.rag_index.conftest import chunks_of

PLACE = HeaderOrigin("shelf", "1.0", "shelf.h", "here")


@contextmanager
def within(seconds: float) -> Generator[None]:
    """Fails what takes longer, instead of waiting for it."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def runtime(toolkit: Root) -> dict[str, Chunk]:
    return chunks_of((toolkit.folder / "cuda_runtime_api.h").read_text(encoding="utf-8"))


@pytest.fixture
def types(toolkit: Root) -> dict[str, Chunk]:
    return chunks_of((toolkit.folder / "driver_types.h").read_text(encoding="utf-8"))


def test_a_function_has_its_signature_first_sentence_text_and_line(runtime: dict[str, Chunk]) -> None:
    found = runtime["shelfPutBoxAsync"]
    assert found.kind == "function"
    assert found.signature == "__host__ shelfStatus_t shelfPutBoxAsync(const void *box, size_t count = 1)"
    assert found.brief == "Puts a box on a shelf"
    assert "Puts count boxes on the shelf at shelfTop." in found.text
    assert "Parameter count: How many boxes\nReturns: shelfOk, shelfFull" in found.text
    assert found.line == 27


def test_references_to_other_symbols_are_left_out_of_the_text(runtime: dict[str, Chunk]) -> None:
    assert "shelfDropEverything" not in runtime["shelfPutBoxAsync"].text
    assert "notefnerr" not in runtime["shelfPutBoxAsync"].text


def test_comments_that_look_back_but_stand_above_their_values_are_theirs() -> None:
    found = chunks_of(
        "enum box {\n  boxS = 1, /**< Small. */\n  boxM = 2, /**< Middle,\n    rather. */\n"
        "            /**< And more. */\n\n  /**< Small, painted. */\n  boxSP = 3,\n"
        "  /**< Middle, painted. */\n  boxMP = 4\n};\n"
        "enum lid {\n  lidS,\n  /**< Small lid. */\n  lidM,\n  /**< Middle lid. */\n};\n"
    )
    briefs = {name: chunk.brief for name, chunk in found.items() if chunk.kind == "enumerator"}
    assert briefs == {
        "boxS": "Small.",
        "boxM": "Middle, rather.",
        "boxSP": "Small, painted.",
        "boxMP": "Middle, painted.",
        "lidS": "Small lid.",
        "lidM": "Middle lid.",
    }
    assert "And more." in found["boxM"].text


def test_overloads_share_one_entry(runtime: dict[str, Chunk]) -> None:
    assert len(runtime["shelfTakeBox"].signature.splitlines()) == 2


def test_braces_in_branches_of_a_condition_do_not_swallow_what_follows(runtime: dict[str, Chunk]) -> None:
    assert {"shelfCount", "shelfClear"} <= runtime.keys()
    assert "Deprecated: Use shelfReset" in runtime["shelfClear"].text


def test_a_group_s_prose_is_an_entry_and_the_licence_is_none(runtime: dict[str, Chunk]) -> None:
    assert runtime["Shelf management"].kind == "group"
    assert "how boxes are put on shelves" in runtime["Shelf management"].text
    assert not any("Copyright" in chunk.text for chunk in runtime.values())


def test_an_enumerator_knows_its_enum_value_and_comment(types: dict[str, Chunk]) -> None:
    full, lost = types["shelfFull"], types["shelfLost"]
    assert (full.kind, full.parent, full.signature) == ("enumerator", "shelfStatus", "shelfFull = (1 << 2)")
    assert full.brief == "No room was left on the shelf."
    assert lost.brief == "The shelf is gone."
    assert types["shelfOk"].brief == "The call did what it should."
    assert "- shelfFull = (1 << 2): No room was left on the shelf." in types["shelfStatus"].text


def test_numbered_siblings_share_an_entry_and_each_name_leads_to_it(types: dict[str, Chunk]) -> None:
    family = types["SHELF_TILE_8x8"]
    assert family.aliases[-1] == "SHELF_TILE_32x32"
    assert len(family.aliases) == 5
    assert family.parent == "shelfTile_t"
    assert "SHELF_TILE_16x16 = 3" in family.text


def test_a_struct_lists_its_fields_those_of_unnamed_unions_too(types: dict[str, Chunk]) -> None:
    text = types["shelfExtent"].text
    assert "- size_t width: Width in bytes" in text
    assert "- int depth: Depth in rows" in text
    assert "- float slope" in text


def test_documented_macros_are_entries_and_include_guards_are_not(types: dict[str, Chunk]) -> None:
    assert types["shelfKeepDark"].signature == "#define shelfKeepDark 0x01"
    assert "SHELF_PLUMBING_H_" not in types


def test_a_typedef_keeps_its_tag_as_another_name(types: dict[str, Chunk]) -> None:
    assert "shelfTile_st" in types["shelfTile_t"].aliases


def test_a_macro_that_renames_a_function_gives_it_the_name_that_users_write(toolkit: Root) -> None:
    found = declarations((toolkit.folder / "cublas_api.h").read_text(encoding="utf-8"))
    chunks = {
        chunk.symbol: chunk for chunk in header_chunks(found, PLACE, {"cublasCreate": "cublasCreate_v2"})
    }
    assert chunks["cublasCreate"].aliases == ("cublasCreate_v2",)
    assert chunks["cublasCreate"].brief == "Creates a multiplier handle."
    assert chunks["cublasOld"].kind == "function"


def test_methods_belong_to_their_class_and_private_ones_to_nobody(toolkit: Root) -> None:
    chunks = chunks_of((toolkit.folder / "cccl/cub/block/crowd_sum.cuh").read_text(encoding="utf-8"))
    assert chunks["CrowdSum"].brief == "Sums the items of a crowd of threads."
    method = chunks["CrowdSum::Sum"]
    assert (method.kind, method.parent) == ("method", "CrowdSum")
    assert method.brief == "Computes a sum."
    assert len(method.signature.splitlines()) == 2
    assert not any("Secret" in name for name in chunks)


def test_the_driver_s_versions_of_a_function_lead_to_the_name_that_programs_use() -> None:
    text = "/** \\brief Frees a box */ int CUDAAPI cuBoxFree(void *box); int CUDAAPI cuBoxFree_v2(void *box);"
    (chunk,) = header_chunks(declarations(text), HeaderOrigin("driver", "1", "cuda.h", "toolkit"))
    assert (chunk.symbol, chunk.brief, chunk.aliases) == ("cuBoxFree", "Frees a box", ("cuBoxFree_v2",))


def test_a_function_for_64_bit_sizes_is_another_name_of_the_plain_one() -> None:
    found = chunks_of(
        "int shelfScale_v2(int n);\nint shelfScale_v2_64(long n);\n#define shelfScale shelfScale_v2\n"
    )
    assert set(found) == {"shelfScale"}
    assert set(found["shelfScale"].aliases) == {"shelfScale_v2", "shelfScale_v2_64", "shelfScale_64"}
    assert len(found["shelfScale"].signature.splitlines()) == 2


def test_a_bare_macro_that_names_another_symbol_is_that_one_s_alias() -> None:
    found = chunks_of(
        "/** Puts a box down. */\nint shelfPutA(int);\n#define shelfPut shelfPutA\n"
        "#define shelfPlace shelfPut\n#define shelfElsewhere otherName\n"
    )
    assert set(found["shelfPutA"].aliases) == {"shelfPut", "shelfPlace"}
    assert "shelfPut" not in found
    assert found["shelfElsewhere"].kind == "macro"


@pytest.mark.parametrize(
    ("comment", "brief"),
    [
        (
            "Gather\n *\n * Each shelf sends its boxes to the root.",
            "Gather: Each shelf sends its boxes to the root.",
        ),
        ("int shelfGather(int)\n *\n * Collects boxes from all shelves.", "Collects boxes from all shelves."),
        ("Collects boxes.\n *\n * From all the shelves there are.", "Collects boxes."),
        ("Gather", "Gather"),
    ],
)
def test_a_first_sentence_that_only_repeats_the_name_goes_on_to_the_next(comment: str, brief: str) -> None:
    assert chunks_of(f"/**\n * {comment}\n */\nint shelfGather(int count);\n")["shelfGather"].brief == brief


def test_a_method_says_what_its_class_is_for(toolkit: Root) -> None:
    text = (toolkit.folder / "cccl/cub/block/crowd_sum.cuh").read_text(encoding="utf-8")
    assert (
        "Member of CrowdSum: Sums the items of a crowd of threads." in chunks_of(text)["CrowdSum::Sum"].text
    )


def test_a_header_of_macros_only_is_read() -> None:
    chunks = chunks_of("#define LEFT 1\n#define RIGHT(x) \\\n  ((x) + LEFT)\n#define EMPTY\n")
    assert chunks["RIGHT"].signature == "#define RIGHT(x) ((x) + LEFT)"
    assert set(chunks) == {"LEFT", "RIGHT"}


def test_a_comment_beside_a_parameter_is_not_the_function_s() -> None:
    text = """/** Weighs a box. */
int shelfWeigh(  //
    int box,  ///< may be empty
    int place);
"""
    found = header_chunks(declarations(text), HeaderOrigin("cudart", "1", "a.h", "test"))
    assert [(row.symbol, row.brief) for row in found] == [("shelfWeigh", "Weighs a box.")]


def test_markup_of_newer_comments_becomes_plain_text() -> None:
    comment = read_comment("//! Adds :cpp:func:`cub::Sum` to ``x``.\n//!\n//! @param[in] x the *other* term")
    assert comment.text == "Adds cub::Sum to `x`.\nParameter x: the *other* term"
    assert comment.brief == "Adds cub::Sum to `x`."


def test_every_character_belongs_to_one_token(toolkit: Root) -> None:
    for path in sorted(toolkit.folder.rglob("*.h")):
        text = path.read_text(encoding="utf-8")
        joined = "".join(token.text for token in tokens(text))
        assert "".join(joined.split()) == "".join(text.split())


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from('{};#"/*\\\n ,()=<>abenumstructdefi1_\u00e9'), max_size=200))
def test_any_text_is_survived(text: str) -> None:
    header_chunks(declarations(text), PLACE)


def test_a_damaged_encoding_is_survived(tmp_path: Path) -> None:
    text = b"/** \\brief M\xfcnchen */\nint town(void);".decode("utf-8", errors="replace")
    assert chunks_of(text)["town"].brief.startswith("M")


def test_an_enumerator_counts_whatever_its_enum_or_itself_is_called() -> None:
    text = "enum __shelf_kind_t { __SHELF_E4M3, /**< Small. */ SHELF_STATUS_DEPRECATED = 3 };"
    chunks = header_chunks(declarations(text), HeaderOrigin("device", "1", "x.h", "x"))
    assert {"__SHELF_E4M3", "SHELF_STATUS_DEPRECATED"} <= {chunk.symbol for chunk in chunks}


def test_macros_that_name_each_other_end_no_build() -> None:
    text = "#define boxA boxB\n#define boxB boxC\n#define boxC boxB\n/** A lid. */\nint lid(void);\n"
    text += "#define coverA coverB\n#define coverB lid\n"
    with within(20.0):
        found = chunks_of(text)
    assert set(found) == {"boxA", "boxB", "boxC", "lid"}
    assert set(found["lid"].aliases) == {"coverA", "coverB"}


def test_a_long_chain_of_macros_takes_no_time() -> None:
    names = [f"box{number}" for number in range(20_000)]
    text = "\n".join(f"#define {name} {other}" for name, other in itertools.pairwise(names))
    with within(20.0):
        assert len(chunks_of(f"{text}\n/** A box. */\nint box19999(void);\n")["box19999"].aliases) == 19_999


def test_what_tiles_inherit_is_theirs_and_functions_have_the_namespace_that_a_macro_opens() -> None:
    text = """
    template <unsigned int Size>
    class __static_size_shelf_tile_base {
      public:
        /** Stacks the boxes of the tile. */
        void stack(void) const;
    };
    template <typename Group> int stack_all(const Group &group);
    """
    place = HeaderOrigin("cooperative_groups", "1", "shelf.h", "toolkit")
    found = {chunk.symbol: chunk for chunk in header_chunks(declarations(text), place)}
    assert set(found) == {"thread_block_tile::stack", "stack_all"}
    assert {"cooperative_groups::stack_all", "cg::stack_all"} <= set(found["stack_all"].aliases)


def test_the_values_of_a_scoped_enum_are_its_own() -> None:
    found = chunks_of("enum class Mode : int { fast = 1, /* Slowly. */ slow };\nstruct Mode2 { int fast; };")
    assert {name: chunk.kind for name, chunk in found.items()} == {
        "Mode": "enum",
        "Mode::fast": "enumerator",
        "Mode::slow": "enumerator",
        "Mode2": "struct",
    }
    assert (found["Mode::fast"].parent, found["Mode::slow"].signature) == ("Mode", "slow")


def test_a_function_whose_template_parameters_have_defaults_is_one() -> None:
    text = """
    /// Stacks boxes by key.
    template <typename Box, typename Equal = ::shelf::equal_to<>, typename Number = unsigned>
    static int stackByKey(Box *boxes, Equal equal = Equal()) { return 1; }
    template <class T = int> T emptyBox = T(1) + f(2);
    """
    found = chunks_of(text)
    assert found["stackByKey"].brief == "Stacks boxes by key."
    assert "emptyBox" not in found


def test_of_a_library_of_templates_what_programs_name_counts_without_a_comment() -> None:
    text = """
    namespace cudnn_frontend {
    namespace graph {
    class Graph { public: int stack(int boxes); };
    class StackNode { public: int lower(); struct Params { int n; }; };
    }
    namespace experimental { struct is_same {}; }
    void _internal();
    }
    """
    place = HeaderOrigin("cudnn_frontend", "1", "shelf.h", "wheel")
    found = {chunk.symbol for chunk in header_chunks(declarations(text), place)}
    assert found == {"Graph", "Graph::stack", "StackNode"}


PTX = """// generated
#ifndef GUARD

/*
// stack.box.shared::cta.b64   waitComplete, [addr], state;     // 5a.
PTX ISA 78, SM_90 template <typename = void>
__device__ static inline bool stack_box(
  uint64_t* addr);
*/
#if __cccl_ptx_isa >= 780
extern "C" _CCCL_DEVICE void __cuda_ptx_stack_box_is_not_supported_before_SM_90__();
template <typename = void>
_CCCL_DEVICE static inline bool stack_box(_CUDA_VSTD::uint64_t* __addr)
{
  asm("stack.box %0" : : "r"(__addr));
}
#endif

/*
// ld.space.b8 dest, [addr]; // PTX ISA 10, SM_50
// .space     = { .global }
template <typename B8, enable_if_t<sizeof(B8) == 1, bool> = true>
__device__ static inline B8 ld(const B8* addr);
*/
/*
// ld.space.L1::no_allocate.b8 dest, [addr]; // PTX ISA 74, SM_70
// .space     = { .global }
template <typename B8, enable_if_t<sizeof(B8) == 1, bool> = true>
__device__ static inline B8 ld_L1_no_allocate(const B8* addr);
*/
#endif
"""


def test_wrappers_of_ptx_instructions_are_read_from_their_comments() -> None:
    path = f"/include/cuda{GENERATED}stack.h"
    rows = header_chunks(declarations(as_declarations(PTX)), HeaderOrigin("libcudacxx", "1", path, "toolkit"))
    stack, load = rows
    assert (stack.symbol, stack.kind, load.symbol) == ("cuda::ptx::stack_box", "function", "cuda::ptx::ld")
    assert stack.brief == (
        "PTX instruction stack.box.shared::cta.b64 waitComplete, [addr], state (PTX ISA 7.8, SM_90)."
    )
    assert {"stack.box", "stack_box"} <= set(stack.aliases)
    assert (stack.architectures, load.architectures) == (("sm_90",), ("sm_50",))
    assert stack.line is not None
    assert "stack_box" in PTX.split("\n")[stack.line] + PTX.split("\n")[stack.line - 1]
    assert (load.brief, "ld_L1_no_allocate" in load.aliases) == (
        "PTX instruction ld.space.b8 dest, [addr] (PTX ISA 1.0, SM_50). .space = { .global }",
        True,
    )
    assert load.signature.count("\n") == 1


@given(st.text(alphabet="/*\n template;PTX ISA78,SM_", max_size=200))
def test_no_text_breaks_the_reader_of_ptx_wrappers(text: str) -> None:
    with within(5):
        as_declarations(f"/*\n{text}*/")


@pytest.mark.parametrize("text", ["/*\n" * 20_000, "/*\n" + "template " * 40_000, "/*\ntemplate x;" * 5_000])
def test_ptx_comments_that_never_end_are_read_in_no_time(text: str) -> None:
    with within(5):
        as_declarations(text)


@pytest.mark.parametrize(
    "text",
    [
        "typedef enum lid {x} cover;\n" * 15_000,
        f"enum lid {{ a = ({'1,' * 150_000} }};",
        f"{'struct ' * 40_000}= {{}};",
        f"{'namespace ' * 30_000}( {{",
        f"/** {'@internal ' * 30_000}*/\nint lid(int);",
        f"/** :ref:`lid{' ' * 300_000}x */\nint lid(int);",
        f"/** {'@a{' * 100_000}*/\nint lid(int);",
        '\\"' * 150_000,
        "{" * 150_000 + "\n#if 1\n#else\n" * 10_000,
        "namespace lid { int cover(int); " * 10_000,
        f"typedef int lid{'[' * 300_000};",
    ],
    ids=lambda text: text[:12],
)
def test_a_header_takes_time_in_proportion_to_its_length(text: str) -> None:
    with within(10.0):  # each took minutes, or would have
        header_chunks(declarations(text), PLACE)


def test_what_is_too_long_or_too_deep_costs_nothing_else_of_its_header() -> None:
    text = f"int lid(int {'x' * 20_000});\n/** A box. */\nint box(void);\n{'{' * 300}"
    assert chunks_of(text)["box"].brief == "A box."


def test_code_in_a_comment_is_kept_as_it_was_written() -> None:
    found = chunks_of(
        "//! @rst\n//! Counts what lies here.\n//!\n//! .. image:: ../sum.png\n//!    :align: center\n//!\n"
        "//! .. code-block:: c++\n//!    :emphasize-lines: 1\n//!\n//!    #include <shelf/sum.cuh>\n//!\n"
        "//!    // Where boxes lie\n//!    int *boxes;   // e.g. [8, 6]\n//!    for (;;)\n"
        "//!      shelf::sum<int>(boxes);\n"
        "//!\n//! Waits in stream\\ :sub:`0`.\n//! @endrst\nvoid sumBoxes(int* boxes);\n"
        "/** Puts.\n * @code\n * // one\n * put<int>(1);\n * @endcode\n"
        " * @param[in] box **[inferred]** It.\n */\n"
        "void putBox(int box);\n"
    )
    code = (
        "#include <shelf/sum.cuh>\n\n// Where boxes lie\nint *boxes;   // e.g. [8, 6]\n"
        "for (;;)\n  shelf::sum<int>(boxes);"
    )
    assert found["sumBoxes"].text == f"Counts what lies here.\n```\n{code}\n```\nWaits in stream 0."
    assert found["sumBoxes"].brief == "Counts what lies here."
    assert found["putBox"].text == "Puts.\n```\n// one\nput<int>(1);\n```\nParameter box: It."


@pytest.mark.parametrize(
    ("comment", "brief"),
    [
        ("/************\n *     lift     *\n ************/", ""),
        ("/// TODO: take this out", ""),
        ("/// READ/WRITE", ""),
        ("//! !", ""),
        ("/// Lift policies.\n///\n/// Lift policies of a box.", "Lift policies of a box."),
        ("/// Moves up. TODO: faster", "Moves up."),
    ],
)
def test_what_says_nothing_of_a_symbol_is_no_first_sentence(comment: str, brief: str) -> None:
    assert chunks_of(f"{comment}\nvoid __lift_policies(int box);\n")["__lift_policies"].brief == brief


def test_signatures_are_written_as_in_code() -> None:
    found = chunks_of("/// Moves.\ntemplate <class T> CUSPARSELT_API void moveBox(T&& box, int** other);\n")
    assert found["moveBox"].signature == "template <class T> void moveBox(T &&box, int **other)"
