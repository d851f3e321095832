"""Signatures are those that a program needs: without a library's export macros, as C++ writes them."""

import pytest

from tests.rag_index.conftest import chunks_of


def test_rvalue_references_and_pointers_to_pointers_are_written_together() -> None:
    found = chunks_of("template <class T> box boxOf(T && t, char * * names, int const & n);")["boxOf"]
    assert found.signature == "template <class T> box boxOf(T &&t, char **names, int const &n)"


@pytest.mark.parametrize(
    "macro",
    [
        "CUSPARSELT_API",
        "NCCL_IR_EXTERN_C",
        "__MATH_FUNCTIONS_DECL__",
        "__MATH_FUNCTIONS_DEVICE_DECL__",
        "__COMMON_INTRINSICS_DECL__",
        "_LIBCPP_INLINE_VISIBILITY",
        "__CUDA_BF16_FORCEINLINE__",
        "_ACRTIMP",
        "THRUST_STD_COMPLEX_DEVICE",
    ],
)
def test_export_macros_are_left_out(macro: str) -> None:
    assert chunks_of(f"{macro} int boxPut(int count);")["boxPut"].signature == "int boxPut(int count)"
    assert chunks_of(f"int {macro} boxPut(int count);")["boxPut"].signature == "int boxPut(int count)"


def test_a_macro_before_a_name_from_the_global_namespace_is_left_out_but_one_that_begins_a_name_is_not() -> (
    None
):
    found = chunks_of("_CCCL_FORCEINLINE ::shelf::size boxA();\n_CUDA_VSTD::size boxB();")
    assert [found[name].signature for name in ("boxA", "boxB")] == [
        "::shelf::size boxA()",
        "_CUDA_VSTD::size boxB()",
    ]


def test_a_macro_behind_a_name_is_not_the_name() -> None:
    assert chunks_of("struct box { int min THRUST_PREVENT_MACRO_SUBSTITUTION () const; };")["box::min"]


def test_a_constructor_outside_of_its_class_is_no_function() -> None:
    found = chunks_of(
        "/** A box. */\nstruct box { int n; };\n"
        "__device__ box::box(int n) { f(); }\n__device__ int box::size() { }"
    )
    assert found["box"].kind == "struct"
    assert set(found) == {"box", "size"}


def test_a_type_whose_name_a_macro_makes_has_the_name_and_the_fields_that_programs_use() -> None:
    found = chunks_of(
        "/** A lid. */\ntypedef struct lid_st {\n  int size; /**< How wide. */\n} MADE_OF(lid_v, 2);\n"
        "typedef MADE_OF(lid_v, 2) lid;\n"
    )
    assert set(found) == {"lid"}
    assert (found["lid"].kind, found["lid"].signature, found["lid"].line) == ("struct", "struct lid", 2)
    assert found["lid"].brief == "A lid."
    assert "int size: How wide." in found["lid"].text


def test_the_line_below_a_macro_with_braces_is_the_declarations_own() -> None:
    found = chunks_of(
        "enum class lid { open };\nNAMES_OF(lid,\n  {\n    {lid::open, 1},\n  })\n\n"
        "enum class box {\n  small\n};\n"
        "NAMES_OF(box,\n  {\n    {box::small, 1},\n  })\n\nint boxPut();\n"
    )
    assert (found["box"].line, found["boxPut"].line) == (7, 15)
    assert found["boxPut"].signature == "int boxPut()"


def test_the_rest_of_a_call_with_braces_in_it_is_no_field() -> None:
    found = chunks_of('/** A box. */\nstruct box {\n  static_assert(f(g(lid{})) > 1, "no");\n  int size;\n};')
    assert found["box"].text == "A box.\nFields:\n- int size"
