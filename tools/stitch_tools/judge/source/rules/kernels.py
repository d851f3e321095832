"""Kernels that are defined, launched, or neither."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.calls import EXTENSION_MAKERS
from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.native import Function, NativeUnit, inside, text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import hit_in, is_hot
from stitch_tools.judge.source.values import Made, Member
from stitch_tools.judge.source.words import words

_NO_LAUNCH = words("""
    cudaFuncSetAttribute cudaFuncGetAttributes cudaFuncSetCacheConfig cuFuncSetAttribute
    cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxPotentialBlockSize
    cudaFuncSetSharedMemConfig cudaOccupancyMaxActiveClusters cudaOccupancyMaxPotentialClusterSize
""")


def find_unlaunched(scanned: Scanned) -> Iterator[Hit]:
    """Kernels that nothing launches; suspicious where no kernel at all is launched."""
    hot = {function.node.id for _, function in scanned.hot_native()}
    used = _used_names(scanned, hot)
    named = set(_names_in_python(scanned))
    kernels = [(unit, row) for unit in scanned.native for row in unit.functions if row.is_kernel]
    idle = [(unit, row) for unit, row in kernels if row.name not in used and row.name not in named]
    for unit, kernel in idle:
        none = len(idle) == len(kernels)
        message = f"kernel {kernel.name} is defined and never launched" + (
            ", nor is any other" if none else ""
        )
        yield Hit(unit.file, unit.line(kernel.node), message, "suspicious" if none else "note")


def _used_names(scanned: Scanned, hot: set[int]) -> set[str]:
    """Names that host code on the hot path, macros or other kernels mention, except to set attributes."""
    found: set[str] = set()
    for unit in scanned.native:
        for node in unit.of("preproc_arg"):
            found.update(_words(text_of(node)))
        quiet = {
            part.id
            for call in unit.calls
            if call.short in _NO_LAUNCH
            for part in inside(call.node, "identifier")
        }
        for node in unit.of("identifier"):
            around = unit.around(node)
            is_run = around is None or around.node.id in hot or around.is_kernel or around.is_device
            if is_run and node.id not in quiet and not _is_declared(node):
                found.add(text_of(node))
    return found


def _is_declared(node: object) -> bool:
    parent = getattr(node, "parent", None)
    return parent is not None and parent.type == "function_declarator"


def _words(text: str) -> list[str]:
    return "".join(char if char.isalnum() or char == "_" else " " for char in text).split()


def _names_in_python(scanned: Scanned) -> Iterator[str]:
    """Texts in Python files: `RawKernel(source, "name")` and its kin ask for kernels by name."""
    for scope in scanned.host.scopes():
        for node in scope.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
                yield node.value


def find_empty(scanned: Scanned) -> Iterator[Hit]:
    """Kernels without any effect."""
    for unit in scanned.native:
        for function in unit.functions:
            if function.is_kernel and not _has_effect(unit, function):
                yield Hit(unit.file, unit.line(function.node), f"kernel {function.name} writes nothing")


def _has_effect(unit: NativeUnit, function: Function) -> bool:
    if any(call.function is function for call in unit.calls):
        return True
    own = _variables(function)
    for node in unit.of("assignment_expression", "update_expression", "asm_statement", "gnu_asm_expression"):
        if function.holds(node):
            target = node.child_by_field_name("left") or node.child_by_field_name("argument")
            # A variable that the kernel does not declare is one of the device, which outlives it.
            if target is None or target.type != "identifier" or text_of(target) not in own:
                return True
    return b"asm" in (function.body.text or b"")


def _variables(function: Function) -> set[str]:
    """Names that the function declares, its parameters included."""
    declared: set[str] = set()
    for node in inside(function.node, "identifier"):
        inner = node.parent.child_by_field_name("declarator") if node.parent is not None else None
        if inner is not None and inner.id == node.id:
            declared.add(text_of(node))
    return declared


def find_uncalled_extensions(scanned: Scanned) -> Iterator[Hit]:
    """Extensions that are built and that forward does not call."""
    builds = [
        call
        for call in scanned.host.calls
        if any(path in EXTENSION_MAKERS for path in call.paths) and scanned.host.is_reached(call.scope)
    ]
    if not builds or not scanned.host.entries:
        return
    for call in scanned.host.calls:
        if is_hot(scanned, call.scope):
            if any(
                isinstance(value, Member | Made) and value.path in EXTENSION_MAKERS for value in call.values
            ):
                return
            # What cannot be followed may be the extension.
            if not call.values:
                return
    for call in builds:
        yield hit_in(scanned, call.scope, call.node, "this extension is built, and forward does not call it")


RULES = (
    Rule(
        "kernel_not_launched",
        "suspicious",
        "A kernel is defined, and nothing on the hot path launches it. A note where other kernels are "
        "launched.",
        "Remove it, or launch it; launches are counted when the program runs.",
        find_unlaunched,
    ),
    Rule(
        "kernel_without_effect",
        "suspicious",
        "A kernel's body writes nothing.",
        "Remove it; a kernel that stands for the work must do it.",
        find_empty,
    ),
    Rule(
        "extension_not_called",
        "suspicious",
        "An extension is built, and forward calls none of its functions.",
        "Call it, or remove it.",
        find_uncalled_extensions,
    ),
)
