"""`compile_program`: builds a program and shows the compiler's messages."""

import re
from pathlib import PurePosixPath
from typing import ClassVar

from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import Detailed, NamesProgram
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.program import Build, Diagnostic, KernelResources, Program
from stitch_tools.models.remedy import Remedy

_MOST_MESSAGES = 12
_ANY = {"reference": "PATH.py"}
"""Stands for the reference where the call named none."""
_OURS = re.compile(r"\bStitch[A-Z]|\bstitch_[a-z]|\bSTITCH_[A-Z]")
"""Names of the interface that a program implements."""


class CompileProgram(NamesProgram, Detailed):
    """Arguments of compile_program."""

    archs: tuple[str, ...] = ()
    """GPU architectures, e.g. sm_90; default: the target's."""


class BuildAnswer(ToolAnswer):
    """The build and its diagnostics."""

    DETAILS: ClassVar[tuple[str, ...]] = ("command",)
    QUOTED: ClassVar[tuple[str, ...]] = ("diagnostics", "docs")

    program_id: str | None = None
    ok: bool | None = None
    """Whether it compiled."""
    diagnostics: tuple[str, ...] = ()
    """Errors first: file:line:column: severity: text."""
    docs: tuple[str, ...] = ()
    """Documentation on the first errors."""
    kernels: tuple[str, ...] = ()
    """Each CUDA kernel: registers, shared memory, spills."""
    cache_hit: bool | None = None
    wall_s: float | None = None
    command: str | None = None


def compile_program(request: CompileProgram, work: JobContext) -> BuildAnswer:
    """Build a program and record the result in its run."""
    from stitch_mcp.server.docs import advice
    from stitch_planner.join import joined
    from stitch_planner.runs.recorder import record_build

    program, workbench, run_id = work.program, work.workbench, work.subject.run_id
    build = workbench.build(program, request.archs) if program.format == "native" else None
    if run_id:
        with joined(workbench.workspace, run_id) as run:
            record_build(run, program, build)
    named = program.program_id[:16]
    where = work.place
    if build is None:
        arguments = {**(where or _ANY), "program": named}
        check = Remedy(tool="check_program", arguments=arguments, why="check whether it is correct")
        return BuildAnswer(
            message="a Python program builds itself when it is loaded: check it",
            run_id=run_id,
            program_id=named,
            ok=True,
            next_steps=(check,),
        )
    return BuildAnswer(
        message=_message(build),
        run_id=run_id,
        artifact=workbench.workspace.store.put_fact(build),
        program_id=named,
        ok=build.ok,
        diagnostics=tuple(_line(item) for item in gravest(build)),
        docs=advice(work.config, _queries(build), cpu=program.target == "cpu") if not build.ok else (),
        kernels=tuple(_kernel(item) for item in build.resources[:_MOST_MESSAGES]),
        cache_hit=build.cache_hit,
        wall_s=round(build.wall_s, 2) if build.wall_s is not None else None,
        command=" ".join(build.command)[:1500],
        next_steps=_next(build, where, program),
    )


def gravest(build: Build) -> list[Diagnostic]:
    """The messages that are shown, the most severe first."""
    order = ("fatal", "error", "warning", "note")
    # A warning about a system's header is about nothing that a program can change.
    own = [item for item in build.diagnostics if item.severity in order[:2] or not _in_system(item)]
    return sorted(own, key=lambda item: order.index(item.severity))[:_MOST_MESSAGES]


def _in_system(item: Diagnostic) -> bool:
    """Whether a message is about a header of the compiler, the system or a library."""
    return item.file is not None and PurePosixPath(item.file).is_absolute()


def _queries(build: Build) -> list[str]:
    """Queries for the documentation: the errors; warnings only if there is no error, notes never."""
    rows = [item for item in gravest(build) if item.doc_query and item.severity != "note"]
    errors = [item for item in rows if item.severity in ("fatal", "error")]
    return [item.doc_query for item in errors or rows]


def _line(item: Diagnostic) -> str:
    place = ":".join(str(part) for part in (item.file, item.line, item.column) if part is not None)
    text = f"{f'{place}: ' if place else ''}{item.severity}: {item.message}"[:400]
    return f"{text}\n    {item.source_line.strip()[:160]}" if item.source_line else text


def _kernel(item: KernelResources) -> str:
    spills = item.spill_store_bytes + item.spill_load_bytes
    used = f"{item.registers} registers, {item.shared_bytes} B shared, {spills} B spilled"
    return f"{item.kernel[:120]} ({item.arch}): {used}"


def _message(build: Build) -> str:
    if build.ok:
        return "it compiled"
    if build.timed_out:
        return "the compiler did not end within its time limit"
    errors = sum(item.severity in ("fatal", "error") for item in build.diagnostics)
    return f"the compiler refused it: {errors} error{'s' if errors != 1 else ''}"


def _next(build: Build, where: dict[str, str], program: Program) -> tuple[Remedy, ...]:
    if build.ok:
        arguments = {**(where or _ANY), "program": program.program_id[:16]}
        return (Remedy(tool="check_program", arguments=arguments, why="see whether it computes the same"),)
    arguments = {**where, "files": {program.main: "FIXED SOURCE"}}
    repair = Remedy(tool="compile_program", arguments=arguments, why="fix what `diagnostics` lists")
    if _OURS.search(" ".join(item.message for item in gravest(build))):
        why = "read the interface"
        return (repair, Remedy(tool="get_artifact", arguments={"id": "stitch://abi"}, why=why))
    query = next(iter(_queries(build)), "")
    if not query:
        return (repair,)
    look = Remedy(tool="search_docs", arguments={"query": query}, why="look up the first error")
    return (repair, look)


TOOL = Tool(
    name="compile_program",
    title="Compile a program",
    description=(
        "Builds a program (C++ or CUDA C++ with the ABI of stitch://abi) and returns compiler messages by "
        "file and line, and each kernel's registers and spills. Cached. C++ 2 to 10 s, CUDA 5 to "
        "60 s. Next: check_program."
    ),
    request=CompileProgram,
    answer=BuildAnswer,
    work=compile_program,
    runs_code=True,
)
