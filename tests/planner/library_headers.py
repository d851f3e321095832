"""Compares what we declare of a library with the library's own header, by a compiler."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from stitch_planner.stitcher.emit.cuda.testing import cuda_headers
from stitch_tools.compile.headers import native_include
from stitch_tools.compile.toolchain import find_cpp_compiler

# Two function types may be called through each other: equal arity, and each place is of one class and size.
SAME_CALL = """
#include <stddef.h>
#include <type_traits>

template <class A, class B>
constexpr bool same_class =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
    std::is_floating_point_v<A> == std::is_floating_point_v<B> &&
    (std::is_integral_v<A> || std::is_enum_v<A>) == (std::is_integral_v<B> || std::is_enum_v<B>);
template <class R, class... P, class S, class... Q>
constexpr bool same_call(R (*)(P...), S (*)(Q...)) {
  if constexpr (sizeof...(P) == sizeof...(Q)) return same_class<R, S> && (same_class<P, Q> && ...);
  return false;
}
"""


def same_functions(names: Sequence[str], ours: str) -> list[str]:
    """Assertions that the functions of our struct `ours` are called as the header's of the same names."""
    return [
        f'static_assert(same_call(decltype({ours}::{name})(nullptr), decltype(&{name})(nullptr)), "{name}");'
        for name in names
    ]


def compile_text(text: str, folder: Path, includes: Sequence[Path]) -> subprocess.CompletedProcess[str]:
    """Checks a C++ text with our headers and those of `includes`."""
    (folder / "same.cpp").write_text(text, encoding="utf-8")
    # The library's headers are not ours to judge: -isystem keeps their warnings out.
    options = [*(f"-isystem{path}" for path in includes), f"-I{cuda_headers()}", f"-I{native_include()}"]
    command = [*find_cpp_compiler().command, "-std=c++17", "-Wall", "-fsyntax-only", *options, "same.cpp"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
