"""CCCL's generated wrappers of PTX instructions, whose comments hold both instruction and declaration."""

import re

GENERATED = "/__ptx/instructions/generated/"
"""In the path of such a header."""
_DECLARATION = re.compile(r"\btemplate\b")
_INSTRUCTION = re.compile(
    r"(?P<code>.*?);\s*(?://)?\s*(?:\d*\w?\.)?\s*PTX ISA (?P<major>\d)(?P<minor>\d),?\s*(?P<rest>.*)",
    re.DOTALL,
)
_VARIANT = re.compile(r"(?P<base>ld|ld_nc|st)_L[12]_\w+|(?P<other>tcgen05_\w+?)_(?:collector|vec|b8x16)_\w+")


def as_declarations(text: str) -> str:
    """The header as declarations below documentation comments, on the lines where they were."""
    pieces: list[str] = []
    last = begin = 0
    while (begin := text.find("/*\n", begin)) >= 0 and (end := text.find("*/", begin + 2)) >= 0:
        declared = _DECLARATION.search(text, begin, end)
        if declared is not None:
            comment = f"/** {_sentence(text[begin + 2 : declared.start()])} */\n"
            blank = text.count("\n", last, declared.start()) - comment.count("\n")
            pieces += ["\n" * max(0, blank), comment, text[declared.start() : end]]
            last = end
        begin = end + 2
    return "".join(pieces)


def family(name: str) -> str:
    """The name that stands for an instruction with all its cache hints: ld_L1_no_allocate is one of ld."""
    match = _VARIANT.fullmatch(name)
    return (match["base"] or match["other"]) if match else name


def _sentence(comment: str) -> str:
    text = " ".join(line.strip().removeprefix("//").strip() for line in comment.split("\n")).strip()
    match = _INSTRUCTION.match(text)
    if match is None:
        return f"PTX instruction {text}"
    since = f"PTX ISA {match['major']}.{match['minor']}"
    needs = re.match(r"(?:SM_\w+(?:,\s*)?)*", match["rest"])
    rest = match["rest"][needs.end() :].strip() if needs else match["rest"]
    gpus = f", {needs[0].strip(', ')}" if needs and needs[0].strip(", ") else ""
    return f"PTX instruction {' '.join(match['code'].split())} ({since}{gpus}).\n{rest}".strip()
