"""A CPU program built with sanitizers: the program's own recipe with other flags, hence another cache key."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from stitch_tools.compile.build import Recipe, plan_build, run_recipe, sources_of
from stitch_tools.models import Build, Program
from stitch_tools.storage.store import Store

ADDRESS_AND_UNDEFINED = "address,undefined"
THREAD = "thread"

# Level 1 keeps the code near its source, so that a report names the right line; the instruction set stays.
# The runtime's names are found when the program is loaded into its host: a linker must not want them defined.
_REPLACED = {"-O3": "-O1", "-Wl,-z,defs": ""}
_DEBUG = ("-g1", "-fno-omit-frame-pointer", "-w")
# Go on after a report: the first defect must not hide the others.
_RECOVER = {ADDRESS_AND_UNDEFINED: "-fsanitize-recover=address,undefined"}


def sanitized_build(
    program: Program,
    store: Store,
    sanitizers: str,
    *,
    cache_dir: Path | None,
    time_limit_s: float,
    prefixes: Sequence[Path] = (),
) -> Build:
    """The program's build with `-fsanitize=<sanitizers>`.

    Raises:
        EnvironmentMissingError: no fitting compiler, or headers that the program includes are not here.
        StoreError: the program's files are missing, or the cache folder cannot be written.
    """
    recipe = plan_build(program, sources_of(program, store), prefixes=prefixes)
    return run_recipe(sanitized(recipe, sanitizers), store, cache_dir=cache_dir, time_limit_s=time_limit_s)


def sanitized(recipe: Recipe, sanitizers: str) -> Recipe:
    """The recipe of a C++ program with a sanitizer's flags."""
    kept = [_REPLACED.get(word, word) for word in recipe.command]
    recover = _RECOVER.get(sanitizers)
    flags = (*_DEBUG, f"-fsanitize={sanitizers}", *((recover,) if recover else ()))
    words = [word for word in kept if word]
    compiler = len(recipe.compiler.command)
    return dataclasses.replace(recipe, command=(*words[:compiler], *flags, *words[compiler:]))
