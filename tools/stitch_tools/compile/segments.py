"""Native segments of a stitched program in Python, built beforehand as the program itself builds them."""

import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stitch_tools.compile.build import OUTPUT_NAME, Recipe, plan_build, run_recipe, sources_of
from stitch_tools.compile.cpp import BASE
from stitch_tools.compile.nvcc import archs_for, code_options
from stitch_tools.errors import StitchError, StoreError
from stitch_tools.models.program import Program
from stitch_tools.models.verdict import SandboxLevel
from stitch_tools.storage.store import Store, storing

_CPU_FLAGS = (*(flag for flag in BASE if flag != "-Wall"), "-fPIC", "-shared")
_CUDA_FLAGS = (
    "-std=c++17",
    "-O1",  # of host code, as in nvcc.py
    "--cudart",
    "static",
    "-shared",
    "-Xcompiler",
    "-fPIC,-fvisibility=hidden",
)
BUILT = "stitch_built"
"""Folder beside the program in which that file looks before it compiles."""
RUNTIME = "stitch_runtime/segments.py"
_TIME_LIMIT_S = 300.0  # of all segments together
_SEGMENT = re.compile(r"segment_\d+\.(?:cpp|cu)")


def segment_flags(target: str) -> tuple[str, ...]:
    """What the program's own `stitch_runtime/segments.py` compiles with.

    Raises:
        UsageError: the target names no GPU architecture.
    """
    if target == "cpu":
        return _CPU_FLAGS
    codes = (f"-gencode={option}" for option in code_options(archs_for(target)))
    return (*_CUDA_FLAGS, *codes)


def built_segments(
    program: Program,
    store: Store,
    *,
    prefixes: Sequence[Path] = (),
    require_sandbox: SandboxLevel | None = None,
    cache_dir: Path | None = None,
    unbuilt: set[str] | None = None,
) -> dict[str, Path]:
    """Libraries in the build cache, by their place in the program's folder.

    Each is what the program would get in its own process, so that it runs as it does without them; where that
    is not sure, or the build fails, it is left to the program.

    Args:
        program: a program in Python; its files lie in `store`.
        store: where the files lie.
        prefixes: `sys.prefix` of interpreters whose library headers may be used.
        require_sandbox: isolation of the compiler below which nothing is built.
        cache_dir: root of our caches; None is the user's cache folder.
        unbuilt: ids of programs that are not tried again; one whose build fails is added.

    Raises:
        StoreError: the program's files are missing or damaged.
    """
    unbuilt = set() if unbuilt is None else unbuilt
    paths = [file.path for file in program.files]
    if any(path == BUILT or path.startswith(f"{BUILT}/") for path in paths) or program.program_id in unbuilt:
        return {}
    names = [path for path in paths if _SEGMENT.fullmatch(path)]
    sources = sources_of(program, store) if names else {}
    # Another version's runtime may have other flags, and so other results.
    if (
        f"FLAGS = {segment_flags(program.target)!r}\n" not in sources.get(RUNTIME, "")
        or BUILT not in sources[RUNTIME]
    ):
        return {}
    deadline_s = time.monotonic() + _TIME_LIMIT_S
    found: dict[str, Path] = {}
    try:
        for name in names:
            recipe = _recipe(program, name, sources, prefixes)
            left_s = deadline_s - time.monotonic()
            if recipe is None or left_s <= 0:
                break
            recipe = replace(recipe, require_sandbox=require_sandbox)
            build = run_recipe(recipe, store, cache_dir=cache_dir, time_limit_s=left_s)
            if build.artifact is None:
                break
            found[f"{BUILT}/{Path(name).stem}.so"] = Path(build.artifact)
    except (StitchError, OSError):  # a cache, compiler or header that cannot be used is no matter here
        found = {}
    if len(found) == len(names):
        return found
    unbuilt.add(program.program_id)
    return {}


def place_segments(places: Mapping[str, Path], folder: Path) -> None:
    """Copy libraries of `built_segments` to their places in the program's folder: all of them or none.

    None is copied where one cannot be read any more.

    Raises:
        StoreError: there is no room for them, or the folder cannot be written.
    """
    try:
        libraries = {place: source.read_bytes() for place, source in places.items()}
    except OSError:  # the cache was cleared in the meantime: the program builds them itself
        return
    try:
        for place, data in libraries.items():
            target = folder / place
            with storing(target, "TMPDIR"):
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(data)
    except StoreError:
        shutil.rmtree(folder / BUILT, ignore_errors=True)  # the program would load what is half written
        raise


def _recipe(
    program: Program, name: str, sources: Mapping[str, str], prefixes: Sequence[Path]
) -> Recipe | None:
    """What the program would run; None where its compiler is none that builds are made with.

    Raises:
        EnvironmentMissingError: there is no compiler, or a header is missing.
        OSError: a compiler or header cannot be read.
    """
    alone = Program(
        format="native", target=program.target, files=program.files, main=name, author=program.author
    )
    recipe = plan_build(alone, sources, prefixes=prefixes)
    if program.target == "cpu" and recipe.compiler.command != _compiler():
        return None
    includes = ("-I.", *(f"-I{folder}" for folder in recipe.include_folders))
    flags = segment_flags(program.target)
    command = (*recipe.compiler.command, *flags, *includes, "-o", OUTPUT_NAME, name, "-ldl")
    return replace(recipe, command=command)


def _compiler() -> tuple[str, ...] | None:
    """The command that the program would choose, None where there is none; see the stitcher's segments.j2."""
    named = os.environ.get("CXX", "").strip()
    if not named:
        found = shutil.which("g++") or shutil.which("clang++")
        return (found,) if found else None
    try:
        words = [named] if Path(named).is_file() else shlex.split(named)
    except ValueError:
        return None
    return (shutil.which(words[0]) or words[0], *words[1:]) if words else None
