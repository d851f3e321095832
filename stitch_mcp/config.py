"""Settings and where each came from: flags > STITCH_* > stitch.toml > pyproject > user config > defaults."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, TypedDict, get_args

from stitch_mcp.model_tables import read_models
from stitch_mcp.toml_file import read_toml
from stitch_planner.llm.model_settings import ModelSettings
from stitch_planner.runs.reviews import ReviewMode
from stitch_planner.runs.run_events import PlannerName, SearchName
from stitch_tools.errors import EnvironmentMissingError, UsageError
from stitch_tools.models.acceptance import AcceptPolicy, Shortcoming
from stitch_tools.models.verdict import SandboxLevel
from stitch_tools.storage.store import can_write

DEFAULT = "default"
Confirm = Literal["ask", "allow", "deny"]
_NEVER_IN_FILES = frozenset({"workspace"})
"""Settings that say where the files lie cannot themselves come from those files."""
_NEVER_IN_WORKSPACE = frozenset(
    {
        "accept",
        "confirm",
        "coder",
        "model",
        "planner",
        "rounds",
        "review",
        "memory",
        "max_model_tokens",
        "max_model_usd",
        "mcp_model_coders",
    }
)
"""What the user accepts, consents to or pays is not for a file to say that came with the code, or that an
agent wrote."""


@dataclass(frozen=True)
class Config:
    """The settings of one call. Field metadata carries the one-line help that `config show` prints."""

    workspace: Path = field(metadata={"help": "folder that holds .stitch, stitch.toml and task files"})
    python: str | None = field(default=None, metadata={"help": "interpreter with torch, runs references"})
    target: str = field(default="cpu", metadata={"help": "device to build for: cpu or cuda[:sm_90]"})
    threads: int | None = field(default=None, metadata={"help": "CPU threads of program and baselines"})
    require_sandbox: SandboxLevel | None = field(
        default=None, metadata={"help": "refuse to run with weaker isolation: full, fs+net or process"}
    )
    cache_dir: Path | None = field(default=None, metadata={"help": "builds, ceilings; default: user cache"})
    lock_dir: Path | None = field(default=None, metadata={"help": "device locks; default: temp folder"})
    time_limit_s: float = field(
        default=1800.0, metadata={"help": "seconds after which no further step, draw or round is started"}
    )
    build_time_limit_s: float = field(default=600.0, metadata={"help": "seconds for one compiler run"})
    bench_budget_s: float = field(
        default=60.0,
        metadata={"help": "seconds for a bench's rounds, half in quick runs; below 0.25 no outcome"},
    )
    compile_baselines: bool = field(
        default=True, metadata={"help": "time torch.compile beside a program, which compiles for minutes"}
    )
    min_speedup: float | None = field(default=None, metadata={"help": "goal over eager; below it: exit 4"})
    forbid_relaxed: bool = field(default=False, metadata={"help": "refuse every loosening of a contract"})
    accept: tuple[Shortcoming, ...] = field(
        default=(), metadata={"help": "shortcomings with which a correct program counts: partial, weak, ..."}
    )
    coder: str | None = field(
        default=None,
        metadata={
            "help": "who writes programs after the stitcher: llm, acp:AGENT, manual, replay:FOLDER, "
            "plugin:NAME"
        },
    )
    model: str | None = field(
        default=None,
        metadata={"help": "model of the coder llm: a [models.NAME] table, or its own name"},
    )
    planner: PlannerName = field(
        default="none", metadata={"help": "model: the coder's model refines the plan first; or none"}
    )
    rounds: int | None = field(default=None, metadata={"help": "programs that a model may write; default: 4"})
    search: SearchName | None = field(
        default=None,
        metadata={
            "help": "greedy: refine the best program (default); tree: several drafts, with backtracking"
        },
    )
    review: ReviewMode | None = field(
        default=None,
        metadata={"help": "model: also ask the model for its opinion on each program; default: none"},
    )
    memory: bool = field(
        default=True,
        metadata={"help": "tell a model what earlier runs taught, and keep what this one teaches"},
    )
    max_model_tokens: int | None = field(
        default=None, metadata={"help": "tokens that a run may spend on its model"}
    )
    max_model_usd: float | None = field(
        default=None, metadata={"help": "dollars that a run may spend on its model, where prices are set"}
    )
    confirm: Confirm = field(
        default="ask", metadata={"help": "serve, before a step without isolation: ask, allow or deny"}
    )
    mcp_model_coders: bool = field(
        default=False,
        metadata={"help": "serve: let an MCP client choose the coders llm, acp:AGENT and plugin:NAME"},
    )
    models: Mapping[str, ModelSettings] = field(default_factory=dict[str, ModelSettings], repr=False)
    """The `[models.NAME]` tables of the user's own settings file."""
    origins: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Where each setting came from; a setting that is not named has its default."""

    @property
    def policy(self) -> AcceptPolicy:
        """What `accept` names."""
        return AcceptPolicy.of(self.accept)

    def origin(self, name: str) -> str:
        """Where the value of `name` came from."""
        return self.origins.get(name, DEFAULT)


class Settings(TypedDict, total=False):
    """The same settings as keyword arguments; None and an absent key mean "not given"."""

    workspace: str | Path | None
    python: str | Path | None
    target: str | None
    threads: int | str | None
    require_sandbox: str | None
    cache_dir: str | Path | None
    lock_dir: str | Path | None
    time_limit_s: float | str | None
    build_time_limit_s: float | str | None
    bench_budget_s: float | str | None
    compile_baselines: bool | str | None
    min_speedup: float | str | None
    forbid_relaxed: bool | str | None
    accept: str | Sequence[str] | None
    coder: str | None
    model: str | None
    planner: str | None
    rounds: int | str | None
    search: str | None
    review: str | None
    memory: bool | str | None
    max_model_tokens: int | str | None
    max_model_usd: float | str | None
    confirm: str | None
    mcp_model_coders: bool | str | None


SETTINGS = {item.name: str(item.metadata["help"]) for item in fields(Config) if item.metadata}
"""Name and one-line help of each setting, in the order in which they are shown."""


def load_config(
    flags: Mapping[str, object] | Settings | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user_file: Path | None = None,
) -> Config:
    """The settings in force. A flag that is None was not given.

    Raises:
        UsageError: a file is not TOML, names an unknown setting, or a value does not fit.
        EnvironmentMissingError: the current folder was removed.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    environment = dict(os.environ) if environ is None else environ
    cwd = cwd or current_folder()
    workspace, workspace_origin = find_workspace(given.get("workspace"), environment, cwd)
    values: dict[str, object] = {"workspace": workspace}
    origins = {"workspace": workspace_origin}
    for layer in _layers(given, environment, workspace, user_file, cwd):
        for name, raw in layer.values.items():
            label = layer.origin.format(name=name.replace("_", "-"), upper=name.upper())
            values[name] = _parse(name, raw, label, layer.base)
            origins[name] = label
    models = read_models(user_file or user_config_file())
    config = Config(**values, models=models, origins=origins)  # pyright: ignore[reportArgumentType] # checked by _parse
    _refuse_too_many_threads(config)
    return config


def find_workspace(flag: object, environ: Mapping[str, str], cwd: Path) -> tuple[Path, str]:
    """The workspace and what decided it: flag, STITCH_WORKSPACE, a usable current folder, user data."""
    if flag is not None:
        return _folder(str(flag), "--workspace", cwd), "--workspace"
    if environ.get("STITCH_WORKSPACE"):
        return _folder(environ["STITCH_WORKSPACE"], "STITCH_WORKSPACE", cwd), "STITCH_WORKSPACE"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    if cwd != Path(cwd.anchor) and cwd != home and can_write(cwd):
        return cwd, "current folder"
    import platformdirs

    return platformdirs.user_data_path("stitch-mcp"), "user data folder"


def configure(settings: Mapping[str, object] | Settings) -> Config:
    """The settings in force for work in this process, whose locks lie where they say.

    Raises:
        UsageError: one of them is wrong, or the workspace that is named is not there.
    """
    config = load_config(settings)
    _require_workspace(config)
    if config.lock_dir is not None:
        # Locks are shared with other processes, so the variable is their one agreed place.
        os.environ["STITCH_LOCK_DIR"] = str(config.lock_dir)
    return config


def _require_workspace(config: Config) -> None:
    """Refuse a workspace that was named and is not there: a typing error would leave a new folder behind."""
    origin = config.origin("workspace")
    if origin in ("--workspace", "STITCH_WORKSPACE") and not config.workspace.is_dir():
        raise UsageError(
            f"{origin} names a folder that is not there: {config.workspace}",
            hint="make it first, or name another",
        )


def unknown_environment(environ: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence per STITCH_* variable that looks like a misspelt setting; others may belong to others."""
    names = [f"STITCH_{name.upper()}" for name in SETTINGS]
    notes: list[str] = []
    for name in sorted(environ):
        # Close ones only: STITCH_MCP_TOKEN and the like are read elsewhere.
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
        if name.startswith("STITCH_") and name not in names and near:
            notes.append(f"{name} is no setting and is ignored; did you mean {near[0]}?")
    return tuple(notes)


def user_config_file() -> Path:
    """Path of the user's own settings, whether or not the file exists."""
    import platformdirs

    return platformdirs.user_config_path("stitch-mcp") / "config.toml"


@dataclass(frozen=True)
class _Layer:
    """Settings of one source; relative paths in them start at `base`."""

    values: Mapping[str, object]
    origin: str
    base: Path


def _layers(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    workspace: Path,
    user_file: Path | None,
    cwd: Path,
) -> tuple[_Layer, ...]:
    """The layers from weakest to strongest."""
    user = user_file or user_config_file()
    project = workspace / "pyproject.toml"
    own = workspace / "stitch.toml"
    settings = [name for name in SETTINGS if name not in _NEVER_IN_FILES]
    # An empty variable counts as not set, as shells and CI systems leave them.
    variables = {
        name: environ[f"STITCH_{name.upper()}"] for name in settings if environ.get(f"STITCH_{name.upper()}")
    }
    return (
        _Layer(_read(user, in_workspace=False), str(user), user.parent),
        _Layer(_read(project, table=("tool", "stitch")), f"{project} [tool.stitch]", workspace),
        _Layer(_read(own), str(own), workspace),
        _Layer(variables, "STITCH_{upper}", cwd),
        _Layer({name: value for name, value in flags.items() if name in settings}, "--{name}", cwd),
    )


def _read(path: Path, table: tuple[str, ...] = (), *, in_workspace: bool = True) -> dict[str, object]:
    """Settings of one file, refused when a key is unknown; {} when there is no such file or table."""
    data = read_toml(path)
    for name in table:
        data = data.get(name, {})
    # Read by themselves, and from the user's own file alone: a table names a key and whom it is sent to.
    if not in_workspace:
        data.pop("models", None)
    never = _NEVER_IN_FILES | _NEVER_IN_WORKSPACE if in_workspace else _NEVER_IN_FILES
    return {_setting(str(key), path, never): value for key, value in data.items()}


def _setting(key: str, path: Path, never: frozenset[str]) -> str:
    """The setting that a key of a file names; dashes and underscores are the same.

    Raises:
        UsageError: no such setting; the hint names the nearest one.
    """
    name = key.replace("-", "_")
    if name in SETTINGS and name not in never:
        return name
    if name in never:
        raise UsageError(
            f"{path}: `{key}` cannot be set in a file", hint=f"use --{key} or STITCH_{name.upper()}"
        )
    # An unknown key is an error: a misspelt setting that is ignored would change results silently.
    near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"known settings: {', '.join(SETTINGS)}"
    raise UsageError(f"{path}: unknown setting `{key}`", hint=hint)


def _parse(name: str, raw: object, origin: str, workspace: Path) -> object:
    """The typed value of one setting.

    Raises:
        UsageError: the value does not fit the setting.
    """
    try:
        return _PARSERS[name](raw, workspace)
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        # Flags and variables carry the setting's name already, files do not.
        setting = origin if origin.startswith(("--", "STITCH_")) else f"{origin}: `{name}`"
        message = f"{setting} cannot be {raw!r}: {error}"
        raise UsageError(message, hint=f"{name}: {SETTINGS[name]}") from error


def _text(raw: object, _base: Path) -> str:
    text = str(raw) if isinstance(raw, str | Path) else ""
    if not text.strip():
        raise ValueError("it must be text")
    return text.strip()


def _interpreter(raw: object, base: Path) -> str:
    """A path is taken relative to where it was written, a bare command name is looked up later."""
    text = _text(raw, base)
    return str(_path(text, base)) if os.sep in text or text.startswith("~") else text


def _target(raw: object, base: Path) -> str:
    text = _text(raw, base)
    if re.fullmatch(r"cpu|cuda(:\d+|:sm_\d+[af]?)?", text):
        return text
    raise ValueError("it must be cpu, cuda, cuda:N or cuda:sm_NN")


def _path(raw: object, base: Path) -> Path:
    return (base / Path(_text(raw, base)).expanduser()).absolute()


def _directory(raw: object, base: Path) -> Path:
    path = _path(raw, base)
    if path.exists() and not path.is_dir():
        raise ValueError("it must be a folder, and this is a file")
    return path


def _count(raw: object, _base: Path) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError("it must be a whole number")
    try:
        value = int(raw)
    except ValueError as error:
        raise ValueError("it must be a whole number") from error
    if value < 1:
        raise ValueError("it must be at least 1")
    return value


def _positive(raw: object, _base: Path) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError("it must be a number")
    try:
        value = float(raw)
    except ValueError as error:
        raise ValueError("it must be a number") from error
    if not 0 < value < float("inf"):
        raise ValueError("it must be above 0")
    return value


def _flag(raw: object, _base: Path) -> bool:
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off"}:
        return False
    raise ValueError("it must be true or false")


def _sandbox(raw: object, base: Path) -> str:
    return _one_of(_text(raw, base), get_args(SandboxLevel))


def _search(raw: object, base: Path) -> str:
    return _one_of(_text(raw, base), get_args(SearchName))


def _review(raw: object, base: Path) -> str:
    return _one_of(_text(raw, base), get_args(ReviewMode))


def _one_of(text: str, names: Sequence[str]) -> str:
    if text not in names:
        raise ValueError(f"it must be one of {', '.join(names)}")
    return text


def _accept(raw: object, _base: Path) -> tuple[Shortcoming, ...]:
    if isinstance(raw, str):
        names = [name.strip() for name in raw.split(",") if name.strip()]
    elif isinstance(raw, Sequence):
        names = [str(name) for name in raw]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] # from TOML
    else:
        raise ValueError("it must be a list of names")
    try:
        return AcceptPolicy.of(names).names
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error


def _planner(raw: object, base: Path) -> str:
    return _one_of(_text(raw, base), get_args(PlannerName))


def _confirm(raw: object, base: Path) -> str:
    return _one_of(_text(raw, base), get_args(Confirm))


_PARSERS = {
    "python": _interpreter,
    "target": _target,
    "threads": _count,
    "require_sandbox": _sandbox,
    "cache_dir": _directory,
    "lock_dir": _directory,
    "time_limit_s": _positive,
    "build_time_limit_s": _positive,
    "bench_budget_s": _positive,
    "compile_baselines": _flag,
    "min_speedup": _positive,
    "forbid_relaxed": _flag,
    "accept": _accept,
    "coder": _text,
    "model": _text,
    "planner": _planner,
    "rounds": _count,
    "search": _search,
    "review": _review,
    "memory": _flag,
    "max_model_tokens": _count,
    "max_model_usd": _positive,
    "confirm": _confirm,
    "mcp_model_coders": _flag,
}


def _refuse_too_many_threads(config: Config) -> None:
    """Only what is in force counts: a file may be meant for a larger machine, and be overridden here."""
    most = os.cpu_count() or 1
    if config.threads is not None and config.threads > most:
        raise UsageError(
            f"{config.origin('threads')}: {config.threads} threads are more than this machine's processors",
            hint=f"it has {most}; leave threads out to use those that this process may run on",
        )


def current_folder() -> Path:
    """The folder that this process works in.

    Raises:
        EnvironmentMissingError: it was removed.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise EnvironmentMissingError(
            f"the current folder cannot be found: {error.strerror}", hint="cd into a folder that is there"
        ) from error


def _folder(text: str, origin: str, cwd: Path) -> Path:
    """An absolute folder that need not exist yet."""
    try:
        path = (cwd / Path(text).expanduser()).absolute()
        is_file = path.exists() and not path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: no such user in `~user`
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{origin} cannot be {text[:300]}: {reason}", hint="name another folder") from error
    if is_file:
        raise UsageError(f"{origin} names a file: {path}", hint="name a folder")
    return path
