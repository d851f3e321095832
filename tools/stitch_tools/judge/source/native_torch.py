"""PyTorch's operations in C++ sources: by name, by operator, through macros and aliases."""

from collections.abc import Iterator

from tree_sitter import Node

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.native import Call, Function, NativeUnit, inside, text_of
from stitch_tools.judge.source.torch_names import is_tensor_word, op_kind
from stitch_tools.judge.source.words import words

_SPACES = words("at torch at::native torch::nn::functional torch::special torch::linalg torch::fft at::_ops")
_NO_OPERATIONS = words("from_blob check dtype device autograd jit cuda indexing data optim utils nn")
_ARITHMETIC = words("+ - * /")
_LOOKUPS = words("""
    findSchemaOrThrow findSchema findOp getOperation getAllOperatorsFor PyImport_ImportModule PyRun_String
    PyRun_SimpleString PyObject_CallMethod PyObject_GetAttrString
""")


def native_operations(scanned: Scanned) -> Iterator[tuple[NativeUnit, Node, str]]:
    """Places in code that may run in forward, each with the operation's name."""
    hot = {function.node.id for _, function in scanned.hot_native()}
    for unit in scanned.native:
        if not unit.uses_aten:
            continue
        spaces = _SPACES | _aliases(unit)
        for node in unit.of("qualified_identifier"):
            function = unit.around(node)
            name = _qualified(text_of(node), spaces)
            if name is not None and function is not None and function.node.id in hot:
                yield unit, node, name
        for call in unit.calls:
            name = _unqualified(unit, call)
            if name is not None and call.function is not None and call.function.node.id in hot:
                yield unit, call.node, name
        for node in unit.of("preproc_arg"):
            for word in _chains(text_of(node)):
                name = _qualified(word, spaces)
                if name is not None and op_kind(name) == "compute":
                    yield unit, node, name
        yield from _operators(unit, hot)


def hidden_operations(scanned: Scanned) -> Iterator[tuple[NativeUnit, Node, str]]:
    """Calls that look an operation up by a text, with what they ask for."""
    for unit in scanned.native:
        for call in unit.calls:
            if call.short in _LOOKUPS or call.name.endswith(("module_::import", "module::import")):
                texts = [text_of(part) for part in call.arguments if part.type == "string_literal"]
                yield unit, call.node, texts[0] if texts else call.name


def _aliases(unit: NativeUnit) -> frozenset[str]:
    """Names given to PyTorch's namespaces: `namespace q = at;`."""
    found: set[str] = set()
    for node in unit.of("namespace_alias_definition"):
        names = "".join(text_of(node).removeprefix("namespace").rstrip(";").split()).split("=")
        if len(names) == 2 and names[1].removeprefix("::") in _SPACES:
            found.add(names[0])
    return frozenset(found)


def _qualified(text: str, spaces: frozenset[str]) -> str | None:
    """`relu` of `at::relu`, where it may be an operation."""
    space, _, name = "".join(text.split("<")[0].split()).rpartition("::")
    if space.removeprefix("::") not in spaces or not name[:1].islower() or name in _NO_OPERATIONS:
        return None
    if name[0] == "k" and name[1:2].isupper():  # a constant: kLong, kCUDA, kStrided
        return None
    return name


def _unqualified(unit: NativeUnit, call: Call) -> str | None:
    """`matmul` of `x.matmul(y)`, and `relu` of `relu(x)` where a namespace is opened."""
    if call.is_launch or "::" in call.name or not is_tensor_word(call.name, sure=False):
        return None
    if call.is_method:
        return call.name
    opened = {text_of(node).split()[-1].rstrip(";") for node in unit.of("using_declaration")}
    own = any(row.name == call.name for row in unit.functions)
    named = {row.rpartition("::")[2] for row in opened}
    return call.name if not own and (opened & _SPACES or call.name in named) else None


def _chains(text: str) -> list[str]:
    """Words of a macro's body, with their namespaces."""
    return "".join(char if char.isalnum() or char in "_:" else " " for char in text).split()


def _operators(unit: NativeUnit, hot: set[int]) -> Iterator[tuple[NativeUnit, Node, str]]:
    """`x + y` where one side is a variable that is declared as a tensor."""
    tensors: dict[int, set[str]] = {}
    for node in unit.of("parameter_declaration", "declaration"):
        function = unit.around(node)
        if function is not None and function.node.id in hot and _declares_tensor(node):
            tensors.setdefault(function.node.id, set()).update(_variables(node, function))
    for node in unit.of("binary_expression"):
        function = unit.around(node)
        names = tensors.get(function.node.id, set()) if function is not None else set[str]()
        sides = (node.child_by_field_name("left"), node.child_by_field_name("right"))
        operator = text_of(node.child_by_field_name("operator"))
        if operator in _ARITHMETIC and any(text_of(side) in names for side in sides):
            yield unit, node, f"operator{operator}"


def _declares_tensor(node: Node) -> bool:
    kind = text_of(node.child_by_field_name("type"))
    if kind.rpartition("::")[2] == "Tensor":
        return True
    value = (
        text_of(node.child_by_field_name("declarator")).partition("=")[2].strip() if kind == "auto" else ""
    )
    return value.startswith(("torch::", "at::")) and not value.startswith(("at::cuda", "torch::cuda"))


def _variables(node: Node, function: Function) -> Iterator[str]:
    declarator = node.child_by_field_name("declarator")
    if declarator is not None and function.holds(node):
        name = next(inside(declarator, "identifier"), None)
        yield from [text_of(name)] if name is not None else []
