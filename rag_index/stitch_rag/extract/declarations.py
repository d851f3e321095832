"""What a header declares, each with its comment: functions, types, enumerators, fields, macros, groups."""

import itertools
import re
from dataclasses import dataclass, field
from typing import Literal

from stitch_rag.extract.comments import Comment, read_comment
from stitch_rag.extract.lexer import Token, tokens
from stitch_rag.extract.noise import without_noise

DeclarationKind = Literal[
    "function", "method", "enum", "enumerator", "struct", "class", "typedef", "macro", "group"
]

_TYPE_HEAD = re.compile(
    r"^(?:.*\s)?(?P<typedef>typedef\s+)?\b(?P<key>enum|struct|union|class)\b(?P<rest>[^=]*)$",
    re.DOTALL,
)
_ENUM_CLASS = re.compile(r"\benum\s+(?:class|struct)\b")
_NAMESPACE = re.compile(r"\bnamespace\b(?:\s+(?P<name>[\w:]+))?[^()]*$")
_EXTERN_C = re.compile(r'extern\s+"C(?:\+\+)?"\s*$')
_TEMPLATE_HEAD = re.compile(r"^(\s*template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)", re.DOTALL)
_DOCUMENTS = re.compile(r"/\*[*!](?!\*)|//[/!]")
_ATTRIBUTE = re.compile(
    r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|__declspec\s*\([^()]*\)|\[\[[^\]]*\]\]"
    r"|\balignas\s*\([^()]*\)|\b__(?:CUDA_)?(?:align|ALIGN)__\s*\([^()]*\)|\b\w*(?:DEPRECAT|deprecat)\w*(?:\s*\((?:[^()]|\([^()]*\))*\))?"
    r"|\brequires\s*\([^()]*\)|\bCUDART_VERSION\b"
)
_ATTRIBUTE_HINT = re.compile(
    r"__attribute__|__declspec|\[\[|align|ALIGN|DEPRECAT|deprecat|requires|CUDART_VERSION"
)
"""Without one of these a statement has no attribute; that is found out faster."""
_CALL = re.compile(r"(?P<name>(?:operator\s*(?:\(\)|[^\s(\w]+|\w+))|~?(?<!\w)[A-Za-z_][\w:]*+)\s*+\(")
_NO_FUNCTION = re.compile(
    r"(?:if|for|while|switch|return|sizeof|decltype|noexcept|requires|static_assert|defined|asm|__asm__|alignas|"
    r"__launch_bounds__|__align__|__builtin_align__|catch|throw)"
)
_MACRO = re.compile(r"^\s*#\s*define\s+(?P<name>\w+)(?P<arguments>\([^)]*\))?\s*(?P<value>.*)$", re.DOTALL)
_CONDITION = re.compile(r"^\s*#\s*(?P<word>if|ifdef|ifndef|elif|else|endif)\b")
_LICENSE = ("copyright", "all rights reserved", "spdx-license", "limitation of liability")
_BODY_MACRO = re.compile(r"\b__DEF_IF_HOST\b")
_LONE_MACRO = re.compile(r"^[ \t]*[A-Z_][A-Z0-9_]{3,}(?:\([^()\n]*\))?[ \t]*(?=\n)", re.MULTILINE)
_CLOSED_CALL = re.compile(r"\A(\s*)\)+")
"""What is left of a macro's call with braces in it."""
_PASTED = re.compile(r"(?:typedef\s+)?(?P<call>_*[A-Z][A-Z0-9_]*\s*\([^()]*\))\s*(?P<name>\w*)")
"""A name that a macro makes, and another one for it."""
_ANGLES = re.compile(r"<[^<>]*>")
_LONGEST_SIGNATURE = 700
_LONGEST_STATEMENT = 8000
"""Characters that are read of a statement; the longest of any CUDA header has 3,400."""
_DEEPEST = 100
"""Braces and conditions in each other; CUDA's headers have 14. Time and memory grow with their square."""


@dataclass(slots=True)
class Declaration:
    """One declaration, filled while the file is read."""

    kind: DeclarationKind
    name: str
    signature: str
    line: int
    comment: Comment = field(default_factory=Comment)
    parent: str = ""
    members: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Fields (or enumerators) as written, each with what its comment says."""
    tag: str = ""
    """Another name of a type: the tag behind a typedef."""
    scoped: bool = False
    """Whether an enumerator is written behind its enum's name: Mode::fast."""


@dataclass(slots=True)
class _Scope:
    """An open brace."""

    kind: Literal["space", "type", "enum", "body"]
    name: str = ""
    owner: Declaration | None = None
    private: bool = False


def declarations(text: str) -> list[Declaration]:
    """All declarations of a header in order. Survives any text; what it cannot read is left out."""
    reader = _Reader()
    for token in tokens(_BODY_MACRO.sub(";", text)):
        reader.take(token)
    return reader.found


class _Reader:
    """The state between tokens: open braces, the statement so far, and the last comments."""

    def __init__(self) -> None:
        self.found: list[Declaration] = []
        self._scopes: list[_Scope] = []
        self._conditions: list[list[_Scope]] = []
        self._statement = ""
        self._line = 0
        self._pending: list[Token] = []
        """The last comment: one token, or line comments below each other."""
        self._last: Declaration | None = None
        self._last_line = 0
        self._documented_to = 0
        self._closed: Declaration | None = None
        self._ignored_line = 0
        self._pasted: tuple[str, Declaration] | None = None
        """The last type whose name a macro makes, with that macro's call."""

    def take(self, token: Token) -> None:
        """Read one token."""
        match token.kind:
            case "comment":
                self._take_comment(token)
            case "directive":
                self._take_directive(token)
            case "open":
                self._open(token)
            case "close":
                self._close(token)
            case "end":
                self._end(token)
            case "code":
                self._take_code(token)

    @property
    def _scope(self) -> _Scope | None:
        return self._scopes[-1] if self._scopes else None

    def _in_body(self) -> bool:
        return self._scope is not None and self._scope.kind == "body"

    def _take_comment(self, token: Token) -> None:
        scope = self._scope
        if (scope is not None and scope.kind == "body") or token.start == self._ignored_line:
            return
        # An open parenthesis before a comment is an argument list that goes over several lines.
        if self._statement.count("(") > self._statement.count(")") and (
            scope is None or scope.kind != "enum"
        ):
            return  # it speaks of one parameter, not of the function
        if scope is not None and scope.kind == "enum" and self._statement.strip():
            self._end_enumerator(scope, token.start)  # the last one of an enum has no comma
        trailing = re.match(r"/\*[*!]<|//[/!]<", token.text) is not None
        beside = token.start == self._last_line and not self._statement.strip() and self._last is not None
        if (trailing or beside) and self._last is not None and not self._is_of_the_next(self._last, token):
            self._document_last(token)
            self._documented_to = token.end
            return
        if "defgroup" in token.text or "addtogroup" in token.text:
            self._emit_group(token)
            return
        low = token.text.lower()
        if any(phrase in low for phrase in _LICENSE):
            return
        last = self._pending[-1] if self._pending else None
        if last is not None and last.end >= token.start - 1 and _both_lines(last, token):
            self._pending.append(token)
        else:
            self._pending = [token]

    def _is_of_the_next(self, last: Declaration, token: Token) -> bool:
        """Whether a comment that is written to look back stands above its value: the last one has its own."""
        alone = token.start > max(self._last_line, self._documented_to + 1)
        return last.kind == "enumerator" and bool(last.comment.text) and alone

    def _document_last(self, token: Token) -> None:
        last, comment = self._last, read_comment(token.text)
        assert last is not None
        if last.kind in ("struct", "class") and last.members:
            name, description = last.members[-1]
            last.members[-1] = (name, f"{description} {comment.text}".strip())
        elif not last.comment.text:
            last.comment = comment
        else:
            last.comment = Comment(
                last.comment.brief, f"{last.comment.text} {comment.text}", last.comment.see
            )

    def _emit_group(self, token: Token) -> None:
        comment = read_comment(token.text)
        name = re.search(r"(?:defgroup|addtogroup)\s+(\w+)", token.text)
        if name and len(comment.text) > 40 and comment.group:
            self.found.append(Declaration("group", comment.group, "", token.start, comment, tag=name[1]))
        self._pending = []

    def _take_directive(self, token: Token) -> None:
        condition = _CONDITION.match(token.text)
        if condition is not None:
            self._branch(condition["word"])
        if condition is not None or self._in_body():
            self._ignored_line = token.end  # a comment beside it repeats the condition
            return
        macro = _MACRO.match(token.text)
        if macro is None or self._statement.strip():
            return
        value = " ".join(macro["value"].replace("\\\n", " ").split())
        comment = self._comment_before(token)
        if not value and not comment.text:
            return
        arguments = macro["arguments"] or ""
        signature = f"#define {macro['name']}{arguments} {value}"[:_LONGEST_SIGNATURE]
        self._add(Declaration("macro", macro["name"], signature, token.start, comment), token.end)

    def _branch(self, word: str) -> None:
        """Each branch of a condition begins with the braces that were open at its #if."""
        if word.startswith("if"):
            if len(self._conditions) < _DEEPEST:
                self._conditions.append(list(self._scopes))
        elif self._conditions and word in ("elif", "else"):
            # Both branches may open the same brace; counted twice, everything behind #endif would be in a
            # body.
            self._scopes = list(self._conditions[-1])
            self._statement = ""
        elif self._conditions and word == "endif":
            self._conditions.pop()

    def _take_code(self, token: Token) -> None:
        scope = self._scope
        if scope is not None and scope.kind == "body":
            return
        if scope is not None and scope.kind == "enum":
            self._take_enumerators(token, scope)
            return
        text = token.text
        if scope is not None and scope.kind == "type" and ":" in text:
            for access in re.finditer(r"\b(public|private|protected)\s*:(?!:)", text):
                scope.private = access[1] != "public"
            text = re.sub(r"\b(?:public|private|protected)\s*:(?!:)", "", text)
        if not self._statement.strip():
            text = _CLOSED_CALL.sub(r"\1", text)
        if "\n" in text:
            text = _LONE_MACRO.sub("", text)
        if not self._statement.strip():
            self._line = token.start + _leading_lines(text)
        self._continue(text)

    def _continue(self, text: str) -> None:
        if len(self._statement) < _LONGEST_STATEMENT:
            self._statement += text[:_LONGEST_STATEMENT]

    def _take_enumerators(self, token: Token, scope: _Scope) -> None:
        line = token.start
        for part in re.split(r"(,)", token.text):
            if part == ",":
                self._end_enumerator(scope, line)
            elif part.strip():
                if not self._statement.strip():
                    self._line = line + _leading_lines(part)
                self._continue(part)
            line += part.count("\n")

    def _end_enumerator(self, scope: _Scope, line: int) -> None:
        # A comma inside the parentheses of a value separates nothing.
        if self._statement.count("(") > self._statement.count(")"):
            self._continue(",")
            return
        match = re.match(
            r"\s*(?:\[\[[^\]]*\]\]\s*)?([A-Za-z_]\w*)\s*(?:\w+\s*(?:\([^)]*\))?\s*)?(?:=(.*))?$",
            self._statement,
            re.DOTALL,
        )
        self._statement = ""
        if match is None or scope.owner is None:
            return
        value = " ".join((match[2] or "").split())
        signature = f"{match[1]} = {value}" if value else match[1]
        comment = self._comment_at(self._line)
        row = Declaration("enumerator", match[1], signature, self._line, comment, scope.owner.name)
        row.scoped = scope.owner.signature.startswith("enum class")
        self._add(row, line)

    def _open(self, token: Token) -> None:
        if len(self._scopes) >= _DEEPEST:
            self._statement, self._pending = "", []
            return
        statement = self._clean()
        if self._in_body():
            self._scopes.append(_Scope("body"))
            return
        if _EXTERN_C.search(self._statement) or not statement:
            self._scopes.append(_Scope("space" if statement or self._statement.strip() else "body"))
        elif "namespace" in statement and (namespace := _NAMESPACE.search(statement)):
            self._scopes.append(_Scope("space", namespace["name"] or ""))
        elif head := self._type_head(statement):
            self._scopes.append(head)
            self._statement = ""
            return
        else:
            # A template's parameters may have defaults; else it is a variable that has a value.
            if "=" not in _without_template(statement).split("(")[0]:
                self._emit_function(statement, token)
            self._scopes.append(_Scope("body"))
        self._statement = ""
        self._pending = []

    def _type_head(self, statement: str) -> _Scope | None:
        if not any(key in statement for key in ("enum", "struct", "union", "class")):
            return None
        plain = _without_angles(re.sub(r"<<|>>=|->", " ", statement)).replace("template", " ")
        plain = _ENUM_CLASS.sub("enum", plain)
        match = _TYPE_HEAD.match(plain)
        if match is None or "(" in plain:
            return None
        key = match["key"].split()[0]
        rest = re.split(r"(?<!:):(?!:)", match["rest"])[0].split()
        rest = [word for word in rest if word != "final" and re.match(r"\w", word)]
        name = rest[-1] if rest else ""
        kind: DeclarationKind = (
            "enum" if key == "enum" else "class" if key == "class" or "template" in statement else "struct"
        )
        written = "enum class" if _ENUM_CLASS.search(statement) and key == "enum" else key
        row = Declaration(kind, name, f"{written} {name}".strip(), self._line, self._comment_at(self._line))
        row.parent = self._parent()
        outer = self._scope
        nested = outer is not None and outer.kind == "type" and not name
        if nested and outer is not None and outer.owner is not None and kind != "enum":
            return _Scope("type", "", outer.owner)  # the fields of an unnamed struct are its owner's
        self._pending = []
        self.found.append(row)
        return _Scope("enum" if kind == "enum" else "type", name, row, private=key == "class")

    def _close(self, token: Token) -> None:
        if not self._scopes:
            self._statement, self._pending = "", []
            return
        scope = self._scope
        if scope is not None and scope.kind == "enum" and self._statement.strip():
            self._end_enumerator(scope, token.start)
        scope = self._scopes.pop()
        self._closed = scope.owner if scope.kind in ("enum", "type") else None
        if self._closed is not None and self._scope is not None and self._scope.owner is self._closed:
            self._closed = None
        self._statement, self._pending = "", []
        self._last = None

    def _end(self, token: Token) -> None:
        if self._in_body():
            return
        closed, self._closed = self._closed, None
        statement = self._clean()
        self._statement = ""
        if closed is not None:
            self._name_closed(closed, statement)
        elif statement:
            self._emit_statement(statement, token)
        self._pending = [] if statement else self._pending

    def _name_closed(self, closed: Declaration, statement: str) -> None:
        """`} name;` gives a type its name, or declares a field of it."""
        names = re.findall(r"[A-Za-z_]\w*", _ATTRIBUTE.sub("", statement))
        outer = self._scope
        if (
            outer is not None
            and outer.kind == "type"
            and outer.owner is not None
            and closed is not outer.owner
        ):
            if not closed.name and names:
                closed.name = f"{outer.owner.name}::{names[0]}"
            return
        pasted = _PASTED.fullmatch(statement)
        if pasted is not None and not pasted["name"]:
            self._pasted = (pasted["call"], closed)
        elif names and names[0] != closed.name:
            self._rename(closed, names[0])

    def _rename(self, closed: Declaration, name: str) -> None:
        closed.tag, closed.name = closed.name, name
        closed.signature = f"{closed.signature.split()[0]} {closed.name}" if closed.signature else closed.name
        for row in itertools.takewhile(lambda row: row is not closed, reversed(self.found)):
            if row.kind == "enumerator" and row.parent == closed.tag:
                row.parent = closed.name

    def _emit_statement(self, statement: str, token: Token) -> None:
        scope = self._scope
        if statement.startswith(
            ("using ", "friend ", "static_assert", "namespace ", "extern template", "typename ")
        ):
            return
        if statement.startswith("typedef"):
            self._emit_typedef(statement, token)
        elif "(" in statement and self._emit_function(statement, token):
            return
        elif (
            scope is not None
            and scope.kind == "type"
            and scope.owner is not None
            and not scope.private
            and re.match(r"[\w:\[]", statement)  # else it is the rest of a call with braces in it
        ):
            comment = self._comment_at(self._line)
            scope.owner.members.append((" ".join(statement.split()), comment.text))
            self._last, self._last_line = scope.owner, token.end

    def _emit_typedef(self, statement: str, token: Token) -> None:
        pasted = _PASTED.fullmatch(statement)
        if pasted is not None and self._pasted is not None and pasted["call"] == self._pasted[0]:
            self._rename(self._pasted[1], pasted["name"])
            return
        pointer = re.search(r"\(\s*(?:\w+\s*)?\*\s*(\w+)\s*\)\s*\(", statement)
        names = re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^\]]*\]", "", statement))
        name = pointer[1] if pointer else names[-1]
        if len(names) > 1:
            row = Declaration(
                "typedef", name, _signature(statement), self._line, self._comment_at(self._line)
            )
            row.parent = self._parent()
            self._add(row, token.end)

    def _emit_function(self, statement: str, token: Token) -> bool:
        """Whether `statement` declared a function; it is added."""
        head = _without_template(_without_attributes(statement))
        match = _CALL.search(head)
        while match is not None and _NO_FUNCTION.fullmatch(match["name"]):
            match = _CALL.search(head, match.end())
        if match is None or "=" in head[: match.start()] or not head[: match.start()].strip():
            return False
        *owners, name = match["name"].split("::")
        if owners and owners[-1] == name:
            return True  # a constructor, outside of its class
        if name.startswith(("operator", "~")) or (self._scope is not None and self._scope.private):
            return True
        parent = self._parent()
        kind: DeclarationKind = (
            "method" if self._scope is not None and self._scope.kind == "type" else "function"
        )
        row = Declaration(kind, name, _signature(statement), self._line, self._comment_at(self._line), parent)
        self._add(row, token.end)
        return True

    def _parent(self) -> str:
        names = [scope.name for scope in self._scopes if scope.name and scope.kind in ("space", "type")]
        return "::".join(name for name in names if not name.startswith(("_V_", "__4", "_CCCL", "__detail")))

    def _clean(self) -> str:
        return without_noise(_without_attributes(self._statement)).strip()

    def _add(self, row: Declaration, last_line: int) -> None:
        self.found.append(row)
        self._last, self._last_line = row, last_line
        self._pending = []

    def _comment_before(self, token: Token) -> Comment:
        return self._comment_at(token.start)

    def _comment_at(self, line: int) -> Comment:
        """The pending comment, if it is a documentation comment or ends right above `line`."""
        if not self._pending:
            return Comment()
        documents = _DOCUMENTS.match(self._pending[0].text) is not None
        # A documentation comment may stand some lines above its name, a plain one only right above it.
        near = 0 <= line - self._pending[-1].end <= (4 if documents else 1)
        return read_comment("\n".join(token.text for token in self._pending)) if near else Comment()


def _both_lines(first: Token, second: Token) -> bool:
    return first.text.startswith("//") and second.text.startswith("//")


def _without_attributes(text: str) -> str:
    return _ATTRIBUTE.sub(" ", text) if _ATTRIBUTE_HINT.search(text) else text


def _without_template(text: str) -> str:
    return _TEMPLATE_HEAD.sub("", text) if "template" in text else text


def _without_angles(text: str) -> str:
    """The text without template arguments, nested ones from the inside out."""
    while True:
        shorter = _ANGLES.sub("", text)
        if shorter == text:
            return text
        text = shorter


def _leading_lines(text: str) -> int:
    return text[: len(text) - len(text.lstrip())].count("\n")


def _signature(statement: str) -> str:
    text = re.sub(r"\s*__dv\(([^()]*)\)", r" = \1", " ".join(statement.split()))
    return (
        re.sub(r"\s*([(),*&])\s*", _spacing, text)
        .replace("* *", "**")
        .replace("& &", "&&")[:_LONGEST_SIGNATURE]
    )


def _spacing(match: re.Match[str]) -> str:
    return {",": ", ", "*": " *", "&": " &"}.get(match[1], match[1])
