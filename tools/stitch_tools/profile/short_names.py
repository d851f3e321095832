"""Bare names of kernels and functions, without types, namespaces, template arguments and parameters."""

import re

_CLOSING = {")": "(", ">": "<"}


def short_name(name: str) -> str:
    """`void ns::scale<float, 4>(const float *)` -> `scale`; what has no such form stays as it is."""
    text = name.replace("(anonymous namespace)::", "").replace("operator()", "operator_call")
    text = re.sub(r"\s*\[clone [^\]]*\]|\s+const$", "", text).strip()
    for closing in (")", ">"):
        if text.endswith(closing):
            text = _without_last_group(text, closing).rstrip()
    # What is left of template arguments belongs to a class or a return type.
    word = re.split(r"[\s*&]+", _outside_brackets(text))[-1]
    return word.split("::")[-1] or name


def _without_last_group(text: str, closing: str) -> str:
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        if text[at] == closing:
            depth += 1
        elif text[at] == _CLOSING[closing]:
            depth -= 1
            if depth == 0:
                return text[:at]
    return text


def _outside_brackets(text: str) -> str:
    kept: list[str] = []
    depth = 0
    for letter in text:
        if letter == "<":
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif not depth:
            kept.append(letter)
    return "".join(kept)
