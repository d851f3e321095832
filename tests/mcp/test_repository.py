"""The repository's own promises: layers, import cost, POSIX modules, the owner's placeholder, server.json."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "stitch_mcp": ROOT / "stitch_mcp",
    "stitch_planner": ROOT / "planner" / "stitch_planner",
    "stitch_rag": ROOT / "rag_index" / "stitch_rag",
    "stitch_tools": ROOT / "tools" / "stitch_tools",
}
ROOMS_OF_THE_TARGET = ("confine", "protocol", "worker")
"""What runs in the user's interpreter."""
TARGET_FILES = sorted(
    path for room in ROOMS_OF_THE_TARGET for path in (PACKAGES["stitch_tools"] / room).rglob("*.py")
)
HEAVY = ("torch", "mcp", "openai", "chromadb", "sentence_transformers", "numpy")
POSIX_ONLY = (
    "fcntl",
    "resource",
    "pwd",
    "grp",
    "termios",
    "pty",
    "posix_ipc",
    "crypt",
    "spwd",
    "syslog",
    "tty",
)


def modules_outside_worker() -> list[str]:
    names: list[str] = []
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            if path in TARGET_FILES or path.name == "__main__.py" or path.parent.name == "examples":
                continue  # the first run elsewhere, a start file runs, and an example is a user's file
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def imported_roots(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []  # what only a type checker imports
    roots: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            roots.add(node.module or "")
    return roots


@pytest.mark.parametrize("room", ROOMS_OF_THE_TARGET)
def test_what_runs_in_the_users_interpreter_imports_only_torch_and_the_standard_library(room: str) -> None:
    own = tuple(f"stitch_tools.{name}" for name in ROOMS_OF_THE_TARGET)
    foreign = {
        f"{path.name}: {name}"
        for path in (PACKAGES["stitch_tools"] / room).rglob("*.py")
        for name in imported_roots(path)
        if name.split(".")[0] not in sys.stdlib_module_names | {"torch"} and not name.startswith(own)
    }
    assert not foreign


def test_what_runs_in_the_users_interpreter_parses_as_python_3_10() -> None:
    for path in TARGET_FILES:
        ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 10))


def test_what_runs_in_the_users_interpreter_uses_nothing_that_python_3_10_lacks() -> None:
    pytest.importorskip("vermin")
    vermin = Path(sys.executable).with_name("vermin")
    command = [vermin, "--target=3.10-", "--violations", "--no-tips", *TARGET_FILES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import stitch_mcp, sys; print([name for name in sys.argv[1:] if name in sys.modules])"
    assert run_python(code, *HEAVY, "pydantic", "click", "rich").stdout.strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from stitch_mcp.cli import main; code = main(['--help']);"
        "print(code, [name for name in sys.argv[1:] if name in sys.modules])"
    )
    assert run_python(code, *HEAVY, "pydantic", "rich").stdout.splitlines()[-1] == "0 []"


def test_no_command_module_loads_anything_heavy() -> None:
    code = (
        "import sys; from importlib import import_module; from stitch_mcp.cli import COMMANDS;"
        "[import_module('stitch_mcp.cli.' + name) for name in COMMANDS];"
        "print([name for name in sys.argv[1:] if name in sys.modules])"
    )
    done = run_python(code, *HEAVY)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_package_imports_where_posix_modules_are_missing() -> None:
    code = """
import sys
from importlib import import_module

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocked = set(sys.argv[1].split(","))
for name in blocked:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for name in sys.argv[2:]:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name in blocked:
            print(f"{name} needs {error.name} at import")
        else:
            raise
"""
    # The SDK asks for fcntl itself, unless it sees that the system is Windows.
    asking = ("app", "confirmation", "core_tasks", "http", "stdio", "tasks")
    behind_sdk = {f"stitch_mcp.server.{name}" for name in asking}
    # These run in environments of hosts of reinforcement learning, which are not here.
    adapters = "stitch_mcp.rl.reward.adapters"
    hosted = {f"{adapters}.{name}" for name in ("harbor_verify", "openenv_environment", "verifiers_taskset")}
    # So does what imports the extra `rl`.
    trainer = "stitch_mcp.rl.training.trainer."
    names = [
        name
        for name in modules_outside_worker()
        if name not in behind_sdk | hosted and not name.startswith(trainer)
    ]
    done = run_python(code, ",".join(POSIX_ONLY), *names)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_each_package_is_typed_and_described() -> None:
    for folder in PACKAGES.values():
        assert (folder / "py.typed").exists()
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))


def test_every_listed_command_has_a_module_that_bears_its_name() -> None:
    from importlib import import_module

    import click

    from stitch_mcp.cli import COMMANDS

    for name in COMMANDS:
        command = import_module(f"stitch_mcp.cli.{name}").command
        assert isinstance(command, click.Command)
        assert command.name == name


def test_server_json_fits_the_registry() -> None:
    server = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
    from stitch_mcp import __version__

    assert server["$schema"].endswith("/2025-12-11/server.schema.json")
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"])
    assert 1 <= len(server["description"]) <= 100
    assert server["title"].startswith("StitchCUDA")
    (package,) = server["packages"]
    assert (package["registryType"], package["runtimeHint"]) == ("pypi", "uvx")
    assert package["transport"] == {"type": "stdio"}
    assert package["version"] == __version__
    # The registry sorts servers by semantic version, which spells a development version otherwise than PyPI.
    assert server["version"] == re.sub(r"\.dev(\d+)$", r"-dev.\1", __version__)
    assert f"<!-- mcp-name: {server['name']} -->" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_released_version_has_its_changelog_and_a_development_version_only_unreleased_changes() -> None:
    from stitch_mcp import __version__

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert (f"## [{__version__.split('.dev')[0]}]" in changelog) is (".dev" not in __version__)
    assert "## [Unreleased]" in changelog


def test_the_packages_version_is_read_from_one_place() -> None:
    from stitch_mcp import __version__

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["dynamic"] == ["version"]
    written = (ROOT / settings["tool"]["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    assert f'__version__ = "{__version__}"' in written


def test_the_page_on_the_command_line_lists_every_command() -> None:
    from stitch_mcp.cli import COMMANDS

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, text in COMMANDS.items():
        assert f"| `{name}" in page, name
        assert text.rstrip(".") in page, name


def test_set_owner_replaces_the_placeholder_everywhere(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for name in ("README.md", "server.json", "pyproject.toml", "scripts/set-owner"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    git = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "init", "-q"], cwd=clone, check=True, env=git)
    subprocess.run(["git", "add", "."], cwd=clone, check=True, env=git)
    for owner in ("first-owner", "second"):
        subprocess.run([sys.executable, "scripts/set-owner", owner], cwd=clone, check=True, env=git)
        for name in ("README.md", "server.json", "pyproject.toml"):
            text = (clone / name).read_text(encoding="utf-8")
            assert f"{owner}/stitch-mcp" in text, name
            assert not re.search(rf"github\.(com/|)(?!{owner}/)[A-Za-z-]+/stitch-mcp", text), name
    refused = subprocess.run([sys.executable, "scripts/set-owner", "not/a name"], cwd=clone, env=git)
    assert refused.returncode == 2


def test_no_line_names_a_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    pattern = re.compile(r"(?<![\w.])/(?:root|home/[a-z]\w*)/")
    for name in listing.decode("utf-8").split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix not in {".svg", ".png"}:
            found = pattern.search(path.read_text(encoding="utf-8", errors="replace"))
            assert not found or name == "tests/mcp/test_repository.py", name


def test_the_shell_scripts_are_valid_bash() -> None:
    for name in ("scripts/setup", "scripts/check", "scripts/wheel-demo", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name
        subprocess.run(["bash", "-n", name], cwd=ROOT, check=True)


def test_every_relative_link_of_a_page_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    assert len(pages) > 5
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
