"""The context that tools work in: the workspace, the settings of this server, and its jobs."""

import os
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from stitch_mcp.config import Config, configure
from stitch_mcp.jobs.supervisor import Supervisor
from stitch_mcp.server.docs import Docs
from stitch_mcp.workbench import workbench_in
from stitch_planner.runs.run import Workspace
from stitch_planner.workbench import Workbench
from stitch_tools.errors import EnvironmentMissingError, UsageError
from stitch_tools.models.verdict import SandboxLevel

MAX_INLINE_BYTES = 1 << 20
Toolset = Literal["steps", "solve", "read", "rl"]
"""`steps`: one instrument a call; `solve`: the whole way; `read`: looking and waiting; `rl`: rewards."""
TOOLSETS: tuple[Toolset, ...] = get_args(Toolset)
DEFAULT_TOOLSETS: tuple[Toolset, ...] = ("steps", "solve", "read")
"""What is offered unasked: every tool of the list costs an agent tokens, and few agents train a policy."""


@dataclass(frozen=True)
class ServerContext:
    """One server's workspace."""

    config: Config
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What `serve` was given by flag; a job's process reads all other sources again."""
    keep_jobs: bool = False
    prepare_jobs: bool = False
    """Keep a process ready for the next job."""
    read_only: bool = False
    """Offer only what builds, runs and writes nothing but notes about itself."""
    toolsets: tuple[Toolset, ...] = DEFAULT_TOOLSETS
    level: SandboxLevel | None = None
    """Isolation of this machine; None: as a probe finds it."""
    agreed: set[str] = field(default_factory=set[str])
    """What the user confirmed for as long as this server runs."""

    @cached_property
    def workbench(self) -> Workbench:
        """Workspace and limits of what runs in this process; jobs open their own from the settings."""
        return workbench_in(Workspace(self.config.workspace), self.config)

    @property
    def workspace(self) -> Workspace:
        """The `.stitch` folder."""
        return self.workbench.workspace

    @cached_property
    def supervisor(self) -> Supervisor:
        """The jobs of this workspace."""
        return Supervisor(self.workspace.folder, keep=self.keep_jobs, prepare=self.prepare_jobs)

    @cached_property
    def unsandboxed(self) -> bool:
        """Whether foreign code would run here with the user's own access to files and network."""
        if self.config.require_sandbox not in (None, "process"):
            return False  # It would not run at all.
        if self.level is not None:
            return self.level == "process"
        from stitch_tools.machine.isolation import probe_isolation

        try:
            # Probed once a server: it starts a process, and the kernel's abilities do not change meanwhile.
            return probe_isolation() == "process"
        except EnvironmentMissingError:
            return False  # Nothing of it can run here.

    @cached_property
    def docs(self) -> Docs:
        """The documentation on this machine."""
        return Docs(self.config)

    @cached_property
    def root(self) -> Path:
        """The workspace's folder, links followed."""
        return self.config.workspace.resolve()

    def refuse_links(self, folder: Path | None = None) -> None:
        """Nothing; what we write into `.stitch`, or into a folder of it, stays in the workspace.

        Raises:
            UsageError: a link there leads out, which may have come with a repository.
        """
        for path in _links(folder or self.workspace.folder):
            try:
                target = path.resolve()
            except (OSError, RuntimeError):
                target = None  # a circle
            if target is None or self.root not in target.parents:
                raise UsageError(
                    f"{path} is a link that leads out of the workspace, and writes would follow it",
                    hint="remove the link, or keep results elsewhere: start the server with --workspace",
                )

    def inside(self, path: str, base: Path | None = None) -> Path:
        """The absolute path of something in the workspace, links followed; it starts from `base` there.

        Raises:
            UsageError: it lies outside, or cannot be a path.
        """
        if "\0" in path or len(path) > 4096:
            raise UsageError(f"{path[:60]!r} is no path", hint="name a file inside the workspace")
        try:
            resolved = ((base or self.root) / Path(path).expanduser()).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"{path[:200]!r} is no path: {error}", hint="name a file inside the workspace"
            ) from error
        if resolved != self.root and self.root not in resolved.parents:
            raise UsageError(
                f"{path[:200]!r} lies outside the workspace {self.root}",
                hint="copy it into the workspace, pass `files`, or start the server with --workspace",
            )
        return resolved


def open_server_context(
    settings: Mapping[str, Any],
    *,
    keep_jobs: bool = False,
    prepare_jobs: bool = False,
    read_only: bool = False,
    toolsets: tuple[Toolset, ...] = DEFAULT_TOOLSETS,
) -> ServerContext:
    """The context of a server with these settings.

    Raises:
        UsageError: a setting is wrong, the workspace that is named is not there, or its `.stitch` leads out
            of it.
    """
    given = {name: str(value) for name, value in settings.items() if value is not None}
    config = configure(given)
    # Jobs must find the same workspace from wherever their process stands.
    given["workspace"] = str(config.workspace)
    # Who was asked what is no part of the work.
    given.pop("confirm", None)
    server_context = ServerContext(
        config=config,
        settings=given,
        keep_jobs=keep_jobs,
        prepare_jobs=prepare_jobs,
        read_only=read_only,
        toolsets=toolsets,
    )
    server_context.refuse_links()
    return server_context


def _links(folder: Path, depth: int = 1) -> Generator[Path]:
    """The folder where it is a link, else links in it and, as far as `depth` says, in folders there."""
    if folder.is_symlink():
        yield folder
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif depth and entry.is_dir():
                # Bounded: looking through a whole tree would make every start slow.
                yield from _links(Path(entry.path), depth - 1)


def parse_toolsets(text: str | None) -> tuple[Toolset, ...]:
    """The toolsets of a comma-separated list; None means the default ones.

    Raises:
        UsageError: one of them is unknown.
    """
    if text is None:
        return DEFAULT_TOOLSETS
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in TOOLSETS]
    if unknown or not names:
        raise UsageError(f"there is no toolset {unknown[0] if unknown else text!r}", hint=", ".join(TOOLSETS))
    return tuple(name for name in TOOLSETS if name in names)
