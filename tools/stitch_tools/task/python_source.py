"""Reads Python files without running them: what they define, and which files beside them they import."""

import ast
import difflib
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.errors import TaskError
from stitch_tools.storage.small_file import read_small

_MAX_MODULES = 500
_IMPORTS = (ast.Import, ast.ImportFrom)
_CODING = re.compile(rb"#.*coding[:=]")


@dataclass(frozen=True)
class PythonSource:
    """One parsed file."""

    path: Path
    data: bytes
    tree: ast.Module

    def definitions(self) -> dict[str, ast.stmt]:
        """Top-level names with the statement that binds them last, in order of appearance."""
        found: dict[str, ast.stmt] = {}
        for statement in _top_level(self.tree.body):
            for name in _bound_names(statement):
                found[name] = statement
        return found

    @property
    def imports_everything(self) -> bool:
        """Whether a `from x import *` brings names that cannot be known without running it."""
        return any(
            isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
            for statement in _top_level(self.tree.body)
        )


def read_python(path: Path) -> PythonSource:
    """The file parsed.

    Raises:
        TaskError: it cannot be read, is not text, or has a syntax error (with line, column and the text).
    """
    try:
        data = read_small(path)
    except FileNotFoundError as error:
        hint = _similar_files(path) or "give the path of a Python file or a task.toml"
        raise TaskError(f"cannot read {path}: {error.strerror}", hint=hint) from error
    except OSError as error:
        is_refused = isinstance(error, PermissionError)
        hint = "check its permissions" if is_refused else "give the path of a Python file or a task.toml"
        raise TaskError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        tree = ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise _syntax_error(path, error) from error
    except LookupError as error:  # a codec between bytes, or between texts: `# coding: rot13`
        line = 1 + next((at for at, text in enumerate(data.split(b"\n", 2)) if _CODING.search(text)), 0)
        hint = "save it as UTF-8 text, and leave the line out"
        raise TaskError(f"{path}:{line}: {str(error).partition(';')[0]}", hint=hint) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise TaskError(f"{path} is not Python source: {error}", hint="save it as UTF-8 text") from error
    except (RecursionError, MemoryError) as error:
        raise TaskError(f"{path} is nested too deeply to parse", hint="simplify the expression") from error
    return PythonSource(path, data, tree)


def require_definition(source: PythonSource, name: str, role: str) -> ast.stmt | None:
    """The statement that binds `name`, or None where a star import may bring it.

    Raises:
        TaskError: nothing binds it; the message names what the file does define.
    """
    names = source.definitions()
    if name in names:
        return names[name]
    if source.imports_everything:
        return None
    own = [
        _describe(other, statement)
        for other, statement in names.items()
        if not isinstance(statement, _IMPORTS)
    ]
    listed = f"it defines {', '.join(own[:12])}" if own else "it defines nothing"
    # The maker of constructor arguments is named much like that of inputs, and is never meant instead.
    possible = [other for other in names if role != "the input maker" or "init" not in other]
    near = difflib.get_close_matches(name, possible, n=1)
    hint = f"did you mean `{near[0]}`?" if near else _entry_hint(source.path, role, names)
    raise TaskError(f"{source.path} has no `{name}` ({role}); {listed}", hint=hint, options=("inputs",))


def local_modules(source: PythonSource, root: Path) -> dict[Path, PythonSource]:
    """`source` and every file below `root` that it imports, directly or through another, by path.

    An import counts as local when a file of that name lies beside the importing file or below `root`.

    Raises:
        TaskError: an imported file has a syntax error, or there are more than 500.
    """
    found = {source.path: source}
    waiting = [source]
    while waiting:
        current = waiting.pop()
        for path in (*_package_files(current.path, root), *_imported_files(current, root)):
            if path not in found:
                found[path] = read_python(path)
                waiting.append(found[path])
        if len(found) > _MAX_MODULES:
            raise TaskError(
                f"{source.path} imports more than {_MAX_MODULES} local files",
                hint="list their folder as search_path in a task.toml instead",
            )
    return found


def package_root(path: Path) -> Path:
    """The folder that imports start from: the nearest one above `path` that is not a package."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _package_files(path: Path, root: Path) -> Iterator[Path]:
    """The `__init__.py` files that importing `path` by its dotted name runs."""
    for folder in path.parents:
        if folder == root or root not in folder.parents:
            return
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"


def _imported_files(source: PythonSource, root: Path) -> Iterator[Path]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name, source.path.parent, root)
        elif isinstance(node, ast.ImportFrom):
            bases = [source.path.parent, root]
            if node.level:
                above = source.path.parents
                if node.level > len(above):
                    continue
                bases = [above[node.level - 1]]
            module = node.module or ""
            yield from _module_files(module, *bases)
            for alias in node.names:
                yield from _module_files(f"{module}.{alias.name}".lstrip("."), *bases)


def _module_files(dotted: str, *bases: Path) -> Iterator[Path]:
    """Files that importing `dotted` runs, where they lie below one of `bases`."""
    parts = dotted.split(".")
    if not dotted or parts[0] in sys.builtin_module_names:
        return
    for base in bases:
        hits: list[Path] = []
        for depth in range(1, len(parts) + 1):
            stem = base.joinpath(*parts[:depth])
            hits += [path for path in (stem / "__init__.py", stem.with_suffix(".py")) if _is_file(path)][:1]
        if hits:
            yield from hits
            return


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is longer than any file's, a folder that may not be searched: not ours
        return False


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, those inside `if`, `try`, `with` and loops included."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _top_level(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _top_level(handler.body)


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, _IMPORTS):
        for alias in statement.names:
            if alias.name != "*":
                yield (alias.asname or alias.name).split(".")[0]
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    yield node.id


def _describe(name: str, statement: ast.stmt) -> str:
    if isinstance(statement, ast.ClassDef):
        return f"class {name}"
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return f"function {name}"
    return name


def _entry_hint(path: Path, role: str, names: dict[str, ast.stmt]) -> str:
    if role == "the entry":
        classes = [name for name, statement in names.items() if isinstance(statement, ast.ClassDef)]
        # What takes nothing makes inputs; what takes some may be what is to be made faster.
        takers = [name for name, required in _functions(names).items() if required]
        only = classes[-1:] or (takers if len(takers) == 1 else [])
        return f"name the object: {path.name}:{only[0] if only else 'OBJECT'}"
    makers = [name for name, required in _functions(names).items() if not required and "init" not in name]
    described = path.with_name("task.toml")
    if role == "the input maker" and described.is_file():
        return f"name the task file beside it, {described.name}, which may say how inputs are made" + (
            f"; or name a maker: {{inputs}} {makers[0]}" if len(makers) == 1 else ""
        )
    if role == "the input maker" and len(makers) == 1:
        other = "write a function that returns a list"
        return f"`{makers[0]}` may be meant: {{inputs}} {makers[0]}; else {other}"
    return "write a function without arguments that returns a list, or name another with {inputs}"


def _functions(names: dict[str, ast.stmt]) -> dict[str, list[str]]:
    """The public functions with the arguments that each needs."""
    return {
        name: required_arguments(statement)
        for name, statement in names.items()
        if isinstance(statement, ast.FunctionDef) and not name.startswith("_")
    }


def required_arguments(function: ast.FunctionDef) -> list[str]:
    """Names of the arguments without a default."""
    given = function.args
    positional = given.posonlyargs + given.args
    keyword = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return [
        *(row.arg for row in positional[: len(positional) - len(given.defaults)]),
        *(row.arg for row, default in keyword if default is None),
    ]


def _syntax_error(path: Path, error: SyntaxError) -> TaskError:
    line = (error.text or "").rstrip("\n")
    caret = " " * max(0, (error.offset or 1) - 1) + "^" if line else ""
    message = f"{path}:{error.lineno or 1}: syntax error: {error.msg}"
    if line:
        message += f"\n    {line}\n    {caret}"
    return TaskError(message, hint="correct the line; the file was not run")


def _similar_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    names = [other.name for other in path.parent.iterdir() if other.suffix in (".py", ".toml")]
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.with_name(near[0])}?" if near else ""
