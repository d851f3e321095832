"""The candidate: a content-addressed folder of source files, and what building it gave."""

from typing import Literal

from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.models.task import SourceFile
from stitch_tools.models.verdict import SandboxLevel

ProgramFormat = Literal["native", "kernelbench"]
Toolchain = Literal["cpp", "nvcc"]
STITCHER = "stitcher"
"""Author of the programs that are put together from templates."""


class Program(Fact):
    """A candidate. Equal files, format and target give the same id, whoever wrote them."""

    format: ProgramFormat
    """`native`: C ABI sources; `kernelbench`: a Python file with `ModelNew`."""
    target: str
    """`cpu` or `cuda:sm_90`."""
    files: tuple[SourceFile, ...]
    """Sources, sorted by path; content lies in the store."""
    main: str
    """The file that is compiled (native) or imported (kernelbench)."""
    author: str = "unknown"
    """stitcher, a model's name, or the outside agent's name. Not part of the id."""
    parent_id: str | None = None
    """Program that this one was derived from. Not part of the id."""

    @property
    def program_id(self) -> str:
        """Content hash over format, target, main and files."""
        return sha256_hex(self.model_copy(update={"author": "", "parent_id": None}).canonical_json())


class Diagnostic(Fact):
    """One compiler message."""

    severity: Literal["fatal", "error", "warning", "note"]
    message: str
    file: str | None = None
    """Path relative to the program's folder where it lies inside it."""
    line: int | None = None
    """1-based."""
    column: int | None = None
    """1-based."""
    source_line: str | None = None
    """The text of that line."""
    code: str | None = None
    """The compiler's own name for the message: an option or a number."""
    doc_query: str = ""
    """Plain text with which documentation can be searched."""


class KernelResources(Fact):
    """What ptxas reports for one kernel and one architecture."""

    kernel: str
    """Demangled name where c++filt could, else the symbol."""
    arch: str
    """sm_90, ..."""
    registers: int
    """Per thread."""
    shared_bytes: int = 0
    """Static shared memory per block."""
    constant_bytes: int = 0
    stack_bytes: int = 0
    """Stack frame per thread."""
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0


class Build(Fact):
    """One compiler run: an artifact or diagnostics. A failure here is the candidate's result."""

    program_id: str
    ok: bool
    toolchain: Toolchain
    compiler: str
    """Version line of the compiler that ran."""
    archs: tuple[str, ...] = ()
    """GPU architectures the artifact holds; () for cpu."""
    artifact: str | None = None
    """Absolute path of the shared library in the build cache, or None."""
    artifact_sha256: str | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    resources: tuple[KernelResources, ...] = ()
    command: tuple[str, ...] = ()
    """The exact command; run in a folder with the program's files it repeats the build."""
    timed_out: bool = False
    cache_hit: bool = False
    wall_s: float | None = None
    """Wall seconds of the compiler, None on a cache hit."""
    cpu_s: float | None = None
    """User + system CPU seconds of the compiler and its children."""
    libraries: tuple[str, ...] = ()
    """Absolute paths of shared libraries to preload before the program is loaded (oneDNN, ...)."""
    sandbox: SandboxLevel | None = None
    """Isolation that the compiler ran in, under which the artifact can hold no file of the user's unless it
    is `process`; None: there is none on that system."""
