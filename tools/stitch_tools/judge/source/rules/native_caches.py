"""Results that C++ code keeps from one call to the next."""

from collections.abc import Iterator

from tree_sitter import Node

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.native import Function, NativeUnit, inside, text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.words import listed, words

_MAPS = ("map<", "unordered_map<", "vector<std::pair", "flat_hash_map<")
_RESULTS = (
    "Tensor",
    "vector<float",
    "vector<double",
    "vector<__half",
    "float*",
    "float *",
    "void*>",
    "void *>",
)
_HANDLES = listed("""
    Graph Desc Handle Plan plan Algo algo TensorMap Module Function Event Stream Layout desc handle cudnn
    cublas Exec
""")
_COPIES = words("memcpy cudaMemcpyAsync cudaMemcpy std::memcpy copy_ std::copy std::copy_n clone")
_POINTERS = (
    "data_ptr",
    ".data ==",
    "->data ==",
    "== x.data",
    ".data !=",
    "unsafeGetTensorImpl",
    "const_data_ptr",
)


def find_native_caches(scanned: Scanned) -> Iterator[Hit]:
    """Static or global containers and tensors; those of descriptors and graphs are notes."""
    for unit in scanned.native:
        for node in unit.of("declaration"):
            if not _is_lasting(unit, node):
                continue
            kind = _type_text(node)
            if any(word in kind for word in _MAPS):
                held = kind.partition("<")[2]
                if any(word in held for word in _HANDLES):
                    yield Hit(
                        unit.file, unit.line(node), "descriptors or graphs are kept between calls", "note"
                    )
                elif any(word in held for word in _RESULTS):
                    yield Hit(
                        unit.file, unit.line(node), "tensors or buffers are kept between calls by a key"
                    )
            elif _names_tensor(kind):
                yield Hit(unit.file, unit.line(node), "a tensor is kept between calls")


def _names_tensor(kind: str) -> bool:
    """Whether `Tensor` itself is in the type, not a longer word."""
    return "Tensor" in "".join(char if char.isalnum() or char == "_" else " " for char in kind).split()


def _is_lasting(unit: NativeUnit, node: Node) -> bool:
    is_static = any(
        row.type == "storage_class_specifier" and text_of(row) == "static" for row in node.children
    )
    return is_static or unit.around(node) is None


def _type_text(node: Node) -> str:
    kind = node.child_by_field_name("type")
    # A function's declaration has its parameters after the type: they are no part of it.
    if any(row.type == "function_declarator" for row in node.named_children):
        return ""
    return text_of(kind)


def find_early_copies(scanned: Scanned) -> Iterator[Hit]:
    """Branches that compare an address or count calls, copy something and return."""
    hot = {function.node.id for _, function in scanned.hot_native()}
    for unit in scanned.native:
        counters = {
            _last(text_of(row)) for node in unit.of("update_expression") for row in node.named_children
        }
        lasting = _lasting_names(unit)
        for node in unit.of("if_statement"):
            function = unit.around(node)
            if function is None or function.node.id not in hot:
                continue
            reason = _reason(unit, node, function, counters & lasting)
            if reason is not None and _copies_and_returns(unit, node):
                yield Hit(
                    unit.file, unit.line(node), f"returns early, without a kernel, depending on {reason}"
                )


def _lasting_names(unit: NativeUnit) -> set[str]:
    found: set[str] = set()
    for node in unit.of("declaration"):
        if _is_lasting(unit, node):
            for row in node.named_children:
                found.add(_declared(row))
    for node in unit.of("field_declaration"):
        for row in node.named_children:
            if row.type == "field_identifier":
                found.add(text_of(row))
    return found


def _reason(unit: NativeUnit, node: Node, function: Function, counters: set[str]) -> str | None:
    condition = node.child_by_field_name("condition")
    text = " ".join(text_of(condition).split())
    if condition is None:
        return None
    names = {text_of(row) for row in inside(condition, "identifier", "field_identifier")}
    if names & counters:
        return "how often it was called"
    expanded = text + " " + " ".join(_definition(unit, function, name) for name in sorted(names))
    if any(word in expanded for word in _POINTERS):
        return "an address"
    return None


def _definition(unit: NativeUnit, function: Function, name: str) -> str:
    """The local declaration of a name, so that a condition can be followed one step."""
    for node in unit.of("declaration"):
        if function.holds(node) and any(name == _declared(row) for row in node.named_children):
            return " ".join(text_of(node).split())
    return ""


def _declared(node: Node) -> str:
    return text_of(node.child_by_field_name("declarator") or node).lstrip("*& ")


def _last(text: str) -> str:
    """`calls` of `handle->calls`."""
    return text.replace("->", ".").rpartition(".")[2]


def _inside(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def _copies_and_returns(unit: NativeUnit, node: Node) -> bool:
    branch = node.child_by_field_name("consequence")
    if branch is None or not any(_inside(row, branch) for row in unit.of("return_statement")):
        return False
    calls = [call for call in unit.calls if _inside(call.node, branch)]
    if any(call.is_launch for call in calls):
        return False
    return not calls or all(_is_harmless(call.name) for call in calls)


def _is_harmless(name: str) -> bool:
    kept = (
        "size",
        "data",
        "sizeof",
        "static_cast",
        "data_ptr",
        "find",
        "end",
        "begin",
        "at",
        "numel",
        "nbytes",
    )
    return name in _COPIES or name in kept


RULES = (
    Rule(
        "native_result_cache",
        "suspicious",
        "C++ code keeps tensors or buffers in a static or global variable. Descriptors, plans and graphs "
        "are a note.",
        "Keep nothing from one forward to the next that depends on inputs.",
        find_native_caches,
    ),
    Rule(
        "native_early_return",
        "suspicious",
        "C++ code compares an input's address, or counts calls, and then returns without launching or "
        "computing.",
        "Compute every output in every call.",
        find_early_copies,
    ),
)
