"""Source code as a model judge is shown it: without comments, prose in strings, or names that plead."""

import re
from collections.abc import Mapping

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

_KEPT = re.compile(r"stitch_\w*|Stitch\w*|STITCH_\w*|ModelNew|Model|forward|main|__\w+__|self|torch|nn")
_DECLARATORS = {
    "function_declarator",
    "init_declarator",
    "pointer_declarator",
    "reference_declarator",
    "array_declarator",
    "parameter_declaration",
    "declaration",
    "optional_parameter_declaration",
}
_NAMED_TYPES = {
    "class_specifier",
    "struct_specifier",
    "enum_specifier",
    "alias_declaration",
    "type_definition",
}
_PROSE = re.compile(r'"(?:\\.|[^"\\\n])*"')
_PYTHON_PROSE = re.compile(rf"{_PROSE.pattern}|'(?:\\.|[^'\\\n])*'")
_LEAST_WORDS = 3
_PYTHON_NAME = re.compile(r"\b(?:def|class)\s+([A-Za-z_]\w*)|^\s*([A-Za-z_]\w*)\s*=(?!=)", re.MULTILINE)


def neutral_sources(sources: Mapping[str, str], *, rename: bool = True) -> dict[str, str]:
    """The sources with prose in strings blanked and, with `rename`, the program's own names replaced.

    A name that is defined anywhere gets the same replacement in every file, so that calls stay calls.

    Args:
        sources: without comments, by path.
        rename: whether names are replaced.
    """
    blanked = {
        path: (_PYTHON_PROSE if path.endswith(".py") else _PROSE).sub(_without_prose, text)
        for path, text in sources.items()
    }
    if not rename:
        return blanked
    names: dict[str, str] = {}
    for path in sorted(blanked):
        for name in _defined(path, blanked[path]):
            if not _KEPT.fullmatch(name):
                names.setdefault(name, f"name_{len(names) + 1}")
    if not names:
        return blanked
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})\b")
    return {path: pattern.sub(lambda match: names[match[1]], text) for path, text in blanked.items()}


def _without_prose(match: re.Match[str]) -> str:
    # A path or a format stays: what is said to a reader has words.
    return match[0] if len(match[0].split()) < _LEAST_WORDS else '"..."'


def _defined(path: str, text: str) -> list[str]:
    if path.endswith(".py"):
        return [match[1] or match[2] for match in _PYTHON_NAME.finditer(text)]
    parser = Parser(Language(tree_sitter_cuda.language()))
    found: list[str] = []
    nodes: list[Node] = [parser.parse(text.encode("utf-8")).root_node]
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children)
        parent = node.parent
        if parent is None or node.text is None:
            continue
        is_name = node.type == "identifier" and parent.type in _DECLARATORS
        is_type = node.type == "type_identifier" and parent.type in _NAMED_TYPES
        if (is_name or is_type) and _defines(node, parent):
            found.append(node.text.decode("utf-8", "replace"))
    return found


def _defines(node: Node, parent: Node) -> bool:
    """Whether the node is what its parent declares, not a default value or a size beside it."""
    place = "name" if node.type == "type_identifier" else "declarator"
    named = parent.child_by_field_name(place)
    return named is None or named == node
