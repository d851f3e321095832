"""Builds a program: from its files in the store to a shared library in the cache, or to diagnostics."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stitch_tools.compile.cache import BuildCache
from stitch_tools.compile.confinement import compiler_level, readable_paths, refuse_weaker
from stitch_tools.compile.cpp import cpp_command
from stitch_tools.compile.diagnostics import parse_diagnostics, tool_error
from stitch_tools.compile.elf import missing_abi_symbols
from stitch_tools.compile.headers import Library, find_cublas, find_onednn, native_include
from stitch_tools.compile.nvcc import archs_for, nvcc_command, requested_arch
from stitch_tools.compile.refused import name_refusals
from stitch_tools.compile.resources import parse_resources
from stitch_tools.compile.runner import Completed, run_compiler
from stitch_tools.compile.toolchain import (
    INSTALL_NVCC,
    Compiler,
    find_cpp_compiler,
    find_nvcc,
    host_compiler_problem,
    native_architecture,
)
from stitch_tools.errors import EnvironmentMissingError, UsageError
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.program import Build, Diagnostic, KernelResources, Program, Toolchain
from stitch_tools.models.verdict import SandboxLevel
from stitch_tools.storage.store import Store
from stitch_tools.storage.user_cache import user_cache_dir

OUTPUT_NAME = "libprogram.so"
_KEY_SCHEMA = 2
ONE_SOURCE = "one-source"
"""Code of the note that sources beside the main file are not compiled."""
_SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|cu)$")
_UNDEFINED = re.compile(r"undefined (?:reference|symbol)|unresolved extern", re.IGNORECASE)
_MOST_NAMED = 5


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a build gives, known before it runs."""

    program: Program
    toolchain: Toolchain
    compiler: Compiler
    command: tuple[str, ...]
    archs: tuple[str, ...]
    libraries: tuple[str, ...]
    include_folders: tuple[Path, ...]
    machine: str
    """What -march=native means here; "" for GPU code."""
    host: Compiler | None = None
    """The C++ compiler that `compiler` calls; None where it calls no other."""
    require_sandbox: SandboxLevel | None = None
    """Isolation of the compiler below which nothing is built."""

    @property
    def key(self) -> str:
        """Cache key: program, compiler, flags, machine, and the content of every header folder of ours."""
        facts = {
            "schema": _KEY_SCHEMA,
            "program": self.program.program_id,
            "compiler": self.compiler.version_line,
            "command": self.command,
            "machine": self.machine,
            "headers": [_headers_hash(folder) for folder in self.include_folders],
            # What was built under a weaker isolation may hold files of the user's.
            "require_sandbox": self.require_sandbox,
        }
        return sha256_hex(json.dumps(facts, sort_keys=True).encode("utf-8"))


def compile_program(
    program: Program,
    store: Store,
    *,
    cache_dir: Path | None = None,
    archs: Sequence[str] = (),
    time_limit_s: float = 600.0,
    emit: Callable[[str], None] | None = None,
    prefixes: Sequence[Path] = (),
    require_sandbox: SandboxLevel | None = None,
) -> Build:
    """The build of a native program: from the cache where an equal one lies there, else by the compiler.

    Args:
        program: a native program whose main file is C++ or CUDA; its files lie in `store`.
        store: where the files lie.
        cache_dir: folder of the build cache; None is STITCH_CACHE_DIR or the user's cache folder.
        archs: GPU architectures; empty is the program's own target.
        time_limit_s: the compiler is killed after this many seconds, and the build says `timed_out`.
        emit: called with progress sentences.
        prefixes: `sys.prefix` of interpreters (the target's) whose library headers may be used.
        require_sandbox: isolation of the compiler below which nothing is built.

    Raises:
        EnvironmentMissingError: no fitting compiler, or headers that the program includes are not here.
        SandboxError: this machine isolates compilers less than required.
        StoreError: the program's files are missing, or the cache folder cannot be written.
        UsageError: the program is not native, or C++ for which GPU architectures are named.
    """
    recipe = plan_build(program, sources_of(program, store), archs=archs, prefixes=prefixes)
    recipe = replace(recipe, require_sandbox=require_sandbox)
    return run_recipe(recipe, store, cache_dir=cache_dir, time_limit_s=time_limit_s, emit=emit)


def run_recipe(
    recipe: Recipe,
    store: Store,
    *,
    cache_dir: Path | None = None,
    time_limit_s: float = 600.0,
    emit: Callable[[str], None] | None = None,
) -> Build:
    """The build that a recipe gives: from the cache where an equal one lies there, else by the compiler.

    Raises:
        SandboxError: this machine isolates compilers less than the recipe requires.
        StoreError: the program's files are missing, or the cache folder cannot be written.
    """
    cache = BuildCache(user_cache_dir() if cache_dir is None else cache_dir)
    key = recipe.key
    found = cache.find(key)
    if found is None:
        with cache.building(key, wait_s=time_limit_s):
            found = cache.find(key)  # an equal build may have finished while we waited
            if found is None:
                return _build(recipe, store, cache, key, time_limit_s, emit)
    if emit is not None:
        emit(f"{recipe.program.main}: already built")
    return found.model_copy(update={"cache_hit": True, "wall_s": None, "cpu_s": None})


def plan_build(
    program: Program,
    sources: Mapping[str, str],
    *,
    archs: Sequence[str] = (),
    prefixes: Sequence[Path] = (),
) -> Recipe:
    """Compiler, command and libraries for a program, without running anything but `--version`.

    Raises:
        EnvironmentMissingError: no fitting compiler, or headers that the program includes are not here.
        UsageError: the program is not native, or C++ for which GPU architectures are named.
    """
    toolchain = toolchain_of(program)
    text = "\n".join(sources.values())
    if toolchain == "cpp":
        if archs:
            raise UsageError(
                f"{program.main} is C++ for the CPU, and {', '.join(archs)} names a GPU",
                hint="leave out --arch, or name a .cu file",
            )
        return _cpp_recipe(program, text, prefixes)
    return _nvcc_recipe(program, text, archs, prefixes)


def toolchain_of(program: Program) -> Toolchain:
    """Which toolchain builds the program, from the name of its main file.

    Raises:
        UsageError: the program is not native, or its main file is neither C++ nor CUDA.
    """
    suffix = Path(program.main).suffix
    if program.format != "native" or suffix not in (".cpp", ".cc", ".cxx", ".cu"):
        raise UsageError(
            f"{program.main} cannot be compiled by itself",
            hint="a native main file ends in .cpp or .cu; a ModelNew file is built when it is loaded",
        )
    if program.main.startswith("-"):
        raise UsageError(
            f"the name {program.main} begins with '-': a compiler would take it for an option",
            hint="give the file another name",
        )
    if program.main not in {file.path for file in program.files}:
        raise UsageError(
            f"{program.main} is not one of the program's files", hint="check the program's `main`"
        )
    return "nvcc" if suffix == ".cu" else "cpp"


def _cpp_recipe(program: Program, text: str, prefixes: Sequence[Path]) -> Recipe:
    compiler = find_cpp_compiler()
    onednn = find_onednn(prefixes)
    folders = (native_include(), *_wanted(onednn, r"dnnl\w*\.h", text))
    mentions = re.search(r"\bdnnl|libdnnl", text) is not None
    libraries = (str(onednn.shared_object),) if mentions and onednn.shared_object else ()
    command = cpp_command(compiler, program.main, OUTPUT_NAME, folders)
    machine = native_architecture(compiler)
    return Recipe(program, "cpp", compiler, command, (), libraries, folders, machine)


def _nvcc_recipe(program: Program, text: str, archs: Sequence[str], prefixes: Sequence[Path]) -> Recipe:
    compiler, host = find_nvcc(), find_cpp_compiler()
    problem = host_compiler_problem(compiler, host)
    if problem is not None:
        raise EnvironmentMissingError(problem, hint=f"name an older one with STITCH_CXX; or {INSTALL_NVCC}")
    folders = (native_include(), *_wanted(find_cublas(prefixes), r"cublas\w*\.h", text))
    built = archs_for(program.target, archs)
    command = nvcc_command(compiler, host, program.main, OUTPUT_NAME, built, folders)
    return Recipe(program, "nvcc", compiler, command, built, (), folders, "", host)


def _wanted(library: Library, header: str, text: str) -> tuple[Path, ...]:
    """The library's header folder when the program includes one of its headers, else nothing."""
    included = re.search(rf"^[ \t]*#[ \t]*include[ \t]*[<\"]{header}[>\"]", text, re.MULTILINE)
    return (library.require(),) if included else ()


def _build(
    recipe: Recipe,
    store: Store,
    cache: BuildCache,
    key: str,
    time_limit_s: float,
    emit: Callable[[str], None] | None,
) -> Build:
    if emit is not None:
        arch_names = f" for {', '.join(recipe.archs)}" if recipe.archs else ""
        emit(f"compiling {recipe.program.main}{arch_names} with {recipe.compiler.version_line}")
    refuse_weaker(compiler_level(), recipe.require_sandbox)
    compilers = [recipe.compiler, *([recipe.host] if recipe.host is not None else [])]
    readable = readable_paths(compilers, recipe.include_folders)
    with cache.workspace() as workspace:
        folder, scratch = workspace / "source", workspace / "scratch"
        scratch.mkdir()
        store.materialize(recipe.program.files, folder, "STITCH_CACHE_DIR")
        completed = run_compiler(
            recipe.command,
            folder=folder,
            scratch=scratch,
            time_limit_s=time_limit_s,
            readable=readable,
        )
        sources = sources_of(recipe.program, store)
        build = _result(recipe, completed, folder, sources, readable, time_limit_s)
        if build.artifact is None:
            return build
        return cache.publish(key, build, Path(build.artifact), workspace)


def _resources(recipe: Recipe, output: str) -> tuple[KernelResources, ...]:
    """What the compiler says of each kernel, under the architecture that was asked for."""
    if recipe.toolchain != "nvcc":
        return ()
    return tuple(
        row.model_copy(update={"arch": requested_arch(row.arch, recipe.archs)})
        for row in parse_resources(output)
    )


def _result(
    recipe: Recipe,
    completed: Completed,
    folder: Path,
    sources: Mapping[str, str],
    readable: Sequence[str],
    time_limit_s: float,
) -> Build:
    """What the compiler run gave, with the artifact still where the compiler wrote it."""
    artifact = folder / OUTPUT_NAME
    diagnostics = parse_diagnostics(completed.output, sources, folder=str(folder))
    if completed.level in ("full", "fs+net"):
        diagnostics = name_refusals(diagnostics, folder, readable)
    problem = _failure(completed, artifact, diagnostics, time_limit_s)
    if problem is not None:
        diagnostics = (*diagnostics, problem)
    diagnostics = (*diagnostics, *_not_compiled(recipe.program, diagnostics))
    ok = completed.exit_code == 0 and problem is None
    return Build(
        program_id=recipe.program.program_id,
        ok=ok,
        toolchain=recipe.toolchain,
        compiler=recipe.compiler.version_line,
        archs=recipe.archs,
        artifact=str(artifact) if ok else None,
        artifact_sha256=sha256_hex(artifact.read_bytes()) if ok else None,
        diagnostics=diagnostics,
        resources=_resources(recipe, completed.output),
        command=recipe.command,
        timed_out=completed.timed_out,
        wall_s=completed.wall_s,
        cpu_s=completed.cpu_s,
        libraries=recipe.libraries,
        sandbox=completed.level,
    )


def _failure(
    completed: Completed, artifact: Path, diagnostics: Sequence[Diagnostic], time_limit_s: float
) -> Diagnostic | None:
    """What the compiler did not say itself: time limit, silent death, a library without the ABI."""
    if completed.timed_out:
        return tool_error(f"the compiler did not finish within {time_limit_s:g} s and was stopped")
    if completed.exit_code != 0:
        if any(row.severity in ("fatal", "error") for row in diagnostics):
            return None
        lines = [line for line in completed.output.splitlines() if line.strip()]
        last = f": {lines[-1][:400]}" if lines else ""
        return tool_error(f"the compiler ended with code {completed.exit_code}{last}")
    try:
        missing = missing_abi_symbols(artifact)
    except (OSError, ValueError) as error:
        return tool_error(f"the compiler reported success, but its output cannot be read: {error}")
    if missing:
        return tool_error(
            f"the library does not export {', '.join(missing)}: "
            'define every function of stitch/abi.h with extern "C" and STITCH_EXPORT',
            hint_query="stitch native ABI exported functions",
        )
    return None


def _not_compiled(program: Program, diagnostics: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """That one file is compiled, where the linker misses something and other sources lie beside it."""
    others = [file.path for file in program.files if file.path != program.main and _SOURCE.search(file.path)]
    if not others or not any(_UNDEFINED.search(row.message) for row in diagnostics):
        return ()
    named = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
    message = f"only {program.main} is compiled; what {named} defines counts where that file includes it"
    return (Diagnostic(severity="note", message=message, code=ONE_SOURCE),)


def sources_of(program: Program, store: Store) -> dict[str, str]:
    """The text of the program's files by path.

    Raises:
        StoreError: a file is missing.
    """
    return {file.path: store.get(file.sha256).decode("utf-8", "replace") for file in program.files}


def _headers_hash(folder: Path) -> str:
    """One hash over the headers that a program can reach by name in one of our include folders."""
    names = [path for pattern in ("stitch/**/*", "dnnl*.h", "cublas*.h") for path in folder.glob(pattern)]
    parts = [
        f"{path.relative_to(folder)} {sha256_hex(path.read_bytes())}" for path in names if path.is_file()
    ]
    return sha256_hex("\n".join(sorted(parts)).encode("utf-8"))
