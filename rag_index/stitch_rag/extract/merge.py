"""Declarations as chunks: overloads and numbered siblings become one, renaming macros an alias."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stitch_rag.chunks import Chunk
from stitch_rag.extract.comments import Comment, first_sentence
from stitch_rag.extract.declarations import Declaration
from stitch_rag.extract.examples import prose
from stitch_rag.extract.ptx import GENERATED, family
from stitch_rag.tokens import index_words, symbol_stems

_RENAMING = re.compile(
    r"^(?:#define (?P<new>\w+) (?P<old>\w+)|typedef (?:struct )?(?P<before>\w+) \*?(?P<after>\w+))$"
)
_WIDE = re.compile(r"(\w+?)(?:_v\d+)?_64$")
"""cuBLAS declares each function again for 64-bit sizes."""
_PLAIN_MACRO = re.compile(r"#define (\w+) ([A-Za-z_]\w*)$")
_DECLARES = re.compile(r"(?:[\w:<>,*& ]*[:<>,*& ])?(?P<name>\w+)\s*(?:\(.*\))?;?")
"""A first sentence that is code."""
_NO_SENTENCE = re.compile(r"(?:Parameter |Returns|Fields:|Values:|Note: |Requires: |- |\W)")
_INTERNAL = re.compile(r"(?:^|::)(?:_*detail\w*|_*impl\w*|_+[a-z]\w*)(?:::|$)")
_PLUMBING = re.compile(
    r"_H_*$|_H_INCLUDED|_HPP_*$|^_|_DECL__$|_SUPPRESS|_VISIBILITY|WINAPI$|^CUDART(?:API|_CB)$|(?:BEGIN|END)$"
)
_HIDDEN = re.compile(
    r"^__cuda|_pts[dz]$|^pnccl|DEPRECAT|_DECL__$|^cudaOcc(?!upancy)|^__occ|TempStorage$|_helper$"
)
"""Names that only other macros use."""
_TILE_BASE = re.compile(r"__\w+_tile(?:_base)?")
"""Classes that cooperative groups' tiles inherit their methods from."""
_SPACES = {"cooperative_groups": ("cooperative_groups", "cg")}
"""Namespaces that a library opens by macros, and what programs call them."""
_LANGUAGE = re.compile(r"__(?:location|annotate)__|__attribute__\(\(|__restrict$")
_TEMPLATES = frozenset(("cute", "cutlass", "libcudacxx", "thrust", "cudnn_frontend"))
"""Libraries of templates, most of them their own plumbing."""
_USED = ("function", "struct", "class", "enum")
"""What is meant for users there without a comment, too."""
_GRAPH = re.compile(r"cudnn_frontend::graph::(?:Graph|\w+_attributes)")
"""Classes whose methods programs call; few have a comment."""
_OWN_PLUMBING = re.compile(r"(?:^|::)(?:experimental|generated|nlohmann|std)(?:::|$)|^_|::_")
_FEWEST_SIBLINGS = 6
_TYPES = re.compile(r"type|format", re.IGNORECASE)
"""In the name of an enum whose numbers mean something: FP8_E4M3 is no sibling of FP8_E5M2."""
_DATA_TYPE = re.compile(r"DataType|\dFormat")
"""Enums whose values programs name, whether they have a comment or not."""
_MOST_SIGNATURES = 6
_MOST_MEMBERS = 120


@dataclass(frozen=True, slots=True)
class HeaderOrigin:
    """Where a header's declarations come from."""

    library: str
    version: str | None
    path: str
    source: str


def header_chunks(
    declarations: Sequence[Declaration], place: HeaderOrigin, renamed: Mapping[str, str] | None = None
) -> list[Chunk]:
    """The chunks of one header, each symbol once.

    Args:
        declarations: what the header declares.
        place: where it lies.
        renamed: `renamings` of the library's other headers.
    """
    rows = [row for row in map(_of_its_users, declarations) if _is_public(row)]
    names = {row.name for row in rows if row.kind in ("function", "method")}
    renamed = {**(renamed or {}), **renamings(rows)}
    newer = {old: new for new, old in renamed.items()} | _later_versions(names, place)
    newer |= _wide(names, newer)
    enumerators: dict[str, list[Declaration]] = {}
    for row in rows:
        if row.kind == "enumerator":
            enumerators.setdefault(row.parent, []).append(row)
    briefs = {row.name: row.comment.brief for row in rows if row.kind in ("enum", "class", "struct")}
    chunks: list[Chunk] = []
    for row in rows:
        if row.kind in ("macro", "typedef") and (
            row.name in renamed
            or (row.kind == "macro" and (row.name in names or _is_wide(row.name, renamed)))
        ):
            continue
        if row.kind != "enumerator":
            chunks.append(_chunk(row, place, newer, enumerators, briefs))
    for parent, members in enumerators.items():
        chunks += _enumerator_chunks(members, place, briefs.get(parent, ""))
    if place.library in _TEMPLATES:
        chunks = [_of_instruction(chunk) for chunk in chunks if _is_meant(chunk)]
    return _without_second_names(merge_overloads(chunks))


def _of_instruction(chunk: Chunk) -> Chunk:
    """The chunk; a wrapper of a PTX instruction by the name of its family, with that of the instruction."""
    if GENERATED not in chunk.path:
        return chunk
    base = family(chunk.symbol)
    spelled = re.search(base.replace("_", "[._]"), chunk.brief)
    instruction = spelled[0] if spelled else base.replace("_", ".")
    names = (chunk.symbol, instruction, f"cuda::ptx::{chunk.symbol}", f"ptx::{chunk.symbol}")
    symbol = f"cuda::ptx::{base}"
    aliases = dict.fromkeys((*names, *(() if base == chunk.symbol else (base,))))
    aliases.pop(symbol, None)
    # A form with cache hints is shown by its signature only: the plain instruction explains the family.
    text = chunk.text if base == chunk.symbol else ""
    gpus = tuple(f"sm_{gpu}" for gpu in re.findall(r"\bSM_(\d+[af]?)", chunk.brief))
    return replace(chunk, symbol=symbol, aliases=tuple(aliases), text=text, architectures=gpus)


def _is_meant(chunk: Chunk) -> bool:
    """Whether users of a library of templates are meant to use this."""
    if _OWN_PLUMBING.search(chunk.parent) or _OWN_PLUMBING.search(chunk.symbol):
        return False
    if chunk.kind == "enumerator" and _DATA_TYPE.search(chunk.parent):
        return True
    called = chunk.kind == "method" and _GRAPH.fullmatch(chunk.parent) is not None
    # A type inside another one is part of how that is made.
    own = chunk.kind in _USED and not re.search(r"(?:^|::)[A-Z]\w*$", chunk.parent)
    return bool(chunk.brief) or called or own


def merge_overloads(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The chunks with those of one symbol, kind of thing and library made one; the documented one leads."""
    groups: dict[tuple[str, str, str, str], list[Chunk]] = {}
    for chunk in chunks:
        key = (chunk.library, chunk.parent if chunk.kind == "method" else "", chunk.symbol, _family(chunk))
        groups.setdefault(key, []).append(chunk)
    return [_merged(group) for group in groups.values()]


def renamings(rows: Iterable[Declaration]) -> dict[str, str]:
    """New name to old, for what only renames: `#define cublasCreate cublasCreate_v2`, `typedef X_v1 X`."""
    renamed: dict[str, str] = {}
    for row in rows:
        match = _RENAMING.match(row.signature)
        if match is not None:
            new, old = match["new"] or match["after"], match["old"] or match["before"]
            if re.match(rf"{re.escape(new)}(?:_v\d+|_ptsz|_64)$", old):
                renamed[new] = old
    return renamed


def _later_versions(names: set[str], place: HeaderOrigin) -> dict[str, str]:
    """The driver's versioned functions, each with the name that programs use: cuMemFree_v2, cuMemFree."""
    if place.library != "driver":
        return {}
    plain = {name: re.sub(r"_v\d+$", "", name) for name in names}
    return {name: base for name, base in plain.items() if base != name and base in names}


def _wide(names: set[str], newer: Mapping[str, str]) -> dict[str, str]:
    """The functions for 64-bit sizes, each with the name of the plain one."""
    names_and_targets = names | set(newer.values())
    matches = {name: _WIDE.match(name) for name in names}
    return {name: match[1] for name, match in matches.items() if match and match[1] in names_and_targets}


def _is_wide(name: str, renamed: Mapping[str, str]) -> bool:
    match = _WIDE.match(name)
    return match is not None and match[1] in renamed


def _without_second_names(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The chunks; a macro without a comment that only names another of them became that one's alias."""
    matches = [_PLAIN_MACRO.match(chunk.signature) if chunk.kind == "macro" else None for chunk in chunks]
    second = {
        match[1]: match[2]
        for chunk, match in zip(chunks, matches, strict=True)
        if match is not None and not chunk.text
    }
    first = {
        name for chunk in chunks if chunk.symbol not in second for name in (chunk.symbol, *chunk.aliases)
    }
    aliases: dict[str, list[str]] = {}
    for name, other in _last_names(second).items():
        if other in first:
            aliases.setdefault(other, []).append(name)
    gone = {name for names in aliases.values() for name in names}
    return [
        replace(chunk, aliases=(*chunk.aliases, *more)) if (more := _of(chunk, aliases)) else chunk
        for chunk in chunks
        if chunk.symbol not in gone
    ]


def _last_names(second: Mapping[str, str]) -> dict[str, str]:
    """What each macro names in the end, where macros name macros; "" of those that name each other."""
    last: dict[str, str] = {}
    for name in second:
        path: dict[str, None] = {}
        other = name
        while other in second and other not in last and other not in path:
            path[other] = None
            other = second[other]
        last.update(dict.fromkeys(path, last.get(other, "" if other in path else other)))
    return {name: last[name] for name in second}


def _of(chunk: Chunk, aliases: Mapping[str, Sequence[str]]) -> list[str]:
    return [name for own in (chunk.symbol, *chunk.aliases) for name in aliases.get(own, ())]


def _of_its_users(row: Declaration) -> Declaration:
    """The declaration; a method of a tile's hidden bases as one of the class that programs use."""
    if row.kind == "method" and _TILE_BASE.fullmatch(row.parent):
        return replace(row, parent="thread_block_tile")
    return row


def _is_public(row: Declaration) -> bool:
    if row.kind == "enumerator":
        return bool(
            row.name
        )  # its enum may begin with underscores, its name may say that something is deprecated
    if (
        not row.name
        or _INTERNAL.search(row.parent)
        or _HIDDEN.search(row.name)
        or _TILE_BASE.fullmatch(row.name)
    ):
        return False
    if row.kind == "macro":
        return (
            bool(row.comment.text) or bool(_LANGUAGE.search(row.signature)) or not _PLUMBING.search(row.name)
        )
    return True


def _chunk(
    row: Declaration,
    place: HeaderOrigin,
    newer: Mapping[str, str],
    enumerators: Mapping[str, list[Declaration]],
    briefs: Mapping[str, str],
) -> Chunk:
    symbol, aliases = row.name, [row.tag] if row.tag and row.kind != "group" else []
    if symbol in newer:
        aliases += [symbol, *([f"{newer[symbol]}_64"] if symbol.endswith("_64") else [])]
        symbol = newer[symbol]
    text = row.comment.text
    if row.kind == "method":
        owner = row.parent.split("::")[-1]
        about = briefs.get(owner, "")
        text = f"{text}\nMember of {owner}: {about}".strip() if about else text
        aliases += [symbol, f"{row.parent}::{symbol}"]
        symbol = f"{owner}::{symbol}"
    elif row.parent and row.kind in ("class", "function", "struct"):
        aliases.append(f"{row.parent}::{symbol}")
    elif row.kind in ("class", "function", "struct"):
        aliases += [f"{space}::{symbol}" for space in _SPACES.get(place.library, ())]
    if row.members:
        text = f"{text}\nFields:\n{_member_lines(row.members, len(row.members))}".strip()
    if row.kind == "enum":
        values = enumerators.get(row.name, [])
        shown = [(member.signature, _said(member.comment)) for member in values[:_MOST_MEMBERS]]
        text = f"{text}\nValues:\n{_member_lines(shown, len(values))}".strip()
    return Chunk(
        symbol=symbol,
        kind=row.kind,
        library=place.library,
        version=place.version,
        signature=row.signature,
        brief=_telling(row.comment.brief, row.comment.text, row.name),
        text=text,
        path=place.path,
        line=row.line,
        parent=row.parent,
        source=place.source,
        aliases=tuple(dict.fromkeys(alias for alias in aliases if alias != symbol)),
    )


def _said(comment: Comment) -> str:
    return comment.brief or first_sentence(comment.text)


def _telling(brief: str, text: str, name: str) -> str:
    """The first sentence; where it only repeats the name or the declaration, with the next one."""
    if not brief:
        return ""
    repeats = set(index_words(brief).split()) <= set(index_words(name).split()) | set(symbol_stems(name))
    match = _DECLARES.fullmatch(brief)
    declares = match is not None and match["name"] == name
    if not repeats and not declares:
        return brief
    text_lines = prose(text).split("\n")
    once = brief if brief.endswith(".") else ""
    lines = (line.removeprefix(once).strip() for line in text_lines if line.rstrip(".") != brief.rstrip("."))
    more = next((line for line in lines if line.count(" ") > 2 and not _NO_SENTENCE.match(line)), "")
    if not more:
        # The banner above a family of device functions is none of them.
        return "" if repeats and name.startswith("__") and " " not in brief else brief
    again = more.lower().startswith(brief.rstrip(".").lower())
    return first_sentence(more) if declares or again else first_sentence(f"{brief.rstrip('.')}: {more}")


def _member_lines(members: Sequence[tuple[str, str]], count: int) -> str:
    """A line for each of the first members; `count` is how many there are."""
    lines = [
        f"- {name}: {description}" if description else f"- {name}"
        for name, description in members[:_MOST_MEMBERS]
    ]
    if count > _MOST_MEMBERS:
        lines.append(f"- ... and {count - _MOST_MEMBERS} more")
    return "\n".join(lines)


def _enumerator_chunks(members: Sequence[Declaration], place: HeaderOrigin, brief: str) -> list[Chunk]:
    """One chunk an enumerator; undocumented ones that differ in their numbers only share one."""
    families: dict[str, list[Declaration]] = {}
    for row in members:
        pattern = row.name if row.comment.text else re.sub(r"\d+", "#", row.name)
        families.setdefault(pattern, []).append(row)
    chunks: list[Chunk] = []
    for pattern, rows in families.items():
        if len(rows) >= _FEWEST_SIBLINGS and "#" in pattern and not _TYPES.search(rows[0].parent):
            chunks.append(_family_chunk(rows, place, brief))
        else:
            chunks += [_enumerator(row, place, brief) for row in rows]
    return chunks


def _enumerator(row: Declaration, place: HeaderOrigin, enum_brief: str) -> Chunk:
    text = row.comment.text
    about = f"Value of enum {row.parent}" + (f": {enum_brief}" if enum_brief else "") if row.parent else ""
    return Chunk(
        symbol=f"{row.parent}::{row.name}" if row.scoped and row.parent else row.name,
        kind="enumerator",
        library=place.library,
        version=place.version,
        signature=row.signature,
        brief=row.comment.brief,
        text=f"{text}\n{about}".strip(),
        path=place.path,
        line=row.line,
        parent=row.parent,
        source=place.source,
    )


def _family_chunk(rows: Sequence[Declaration], place: HeaderOrigin, enum_brief: str) -> Chunk:
    head = _enumerator(rows[0], place, enum_brief)
    listing = _member_lines([(row.signature, "") for row in rows], len(rows))
    brief = f"One of {len(rows)} values of {head.parent} that differ in their numbers."
    return replace(
        head, brief=brief, text=f"{head.text}\n{listing}", aliases=tuple(row.name for row in rows[1:])
    )


def _family(chunk: Chunk) -> str:
    return (
        chunk.kind
        if chunk.kind in ("group", "macro")
        else "type"
        if chunk.kind in ("struct", "class", "enum", "typedef")
        else "code"
    )


def _merged(group: Sequence[Chunk]) -> Chunk:
    if len(group) == 1:
        return group[0]
    # A forward declaration or a plain typedef says less than the type itself.
    rank = {"struct": 0, "class": 0, "enum": 0, "typedef": 1}
    best = min(group, key=lambda chunk: (rank.get(chunk.kind, 0), not chunk.brief, -len(chunk.text)))
    signatures = list(dict.fromkeys(chunk.signature for chunk in group if chunk.signature))
    shown = signatures[:_MOST_SIGNATURES]
    if len(signatures) > len(shown):
        shown.append(f"... and {len(signatures) - len(shown)} more overloads")
    signature = best.signature if best.kind in rank else "\n".join(shown)
    aliases = tuple(dict.fromkeys(alias for chunk in group for alias in chunk.aliases))
    return replace(best, signature=signature, aliases=aliases)
