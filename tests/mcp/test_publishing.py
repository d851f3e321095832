"""What registries and hosts are given: server.json, the bundle, the Dockerfile, the README's table."""

import json
import re
import runpy
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stitch_mcp import __version__
from stitch_mcp.server.server_context import DEFAULT_TOOLSETS
from stitch_mcp.server.tool_list import TOOLS, find_tool

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "tests" / "data" / "schemas"


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The functions of scripts/mcpb."""
    return runpy.run_path(str(ROOT / "scripts" / "mcpb"))


@pytest.fixture(scope="module")
def bundle(script: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that was built from this tree."""
    pytest.importorskip("hatchling")
    path: Path = script["build"](tmp_path_factory.mktemp("bundle"))
    return path


def test_server_json_fits_the_schema_of_the_registry() -> None:
    server = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
    wanted = schema("server-2025-12-11.schema.json")
    assert server["$schema"] == wanted["$id"]
    jsonschema.Draft7Validator(wanted, format_checker=jsonschema.FormatChecker()).validate(server)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**server, "description": "x" * 101}, wanted)


def test_the_manifest_of_the_bundle_fits_its_schema_and_names_every_tool(script: dict[str, Any]) -> None:
    manifest = script["manifest"]()
    jsonschema.Draft7Validator(schema("mcpb-manifest-0.4.schema.json")).validate(manifest)
    assert manifest["manifest_version"] == "0.4"
    assert manifest["server"]["type"] == "uv"
    unasked = [name for name in TOOLS if find_tool(name).toolset in DEFAULT_TOOLSETS]
    assert [tool["name"] for tool in manifest["tools"]] == unasked
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[\w.]+)?", manifest["version"])
    asked = set(re.findall(r"\$\{user_config\.(\w+)\}", json.dumps(manifest["server"])))
    assert asked == set(manifest["user_config"])


def test_the_bundle_holds_what_uv_needs(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
        manifest = json.loads(archive.read("manifest.json"))
        project = tomllib.loads(archive.read("pyproject.toml").decode("utf-8"))
    assert manifest["server"]["entry_point"] in names
    assert project["project"]["version"] == __version__
    assert project["tool"]["uv"]["sources"]["stitch-mcp"]["path"] in names
    assert bundle.stat().st_size < 5_000_000


@pytest.mark.exhaustive
def test_the_official_tool_validates_and_unpacks_the_bundle(bundle: Path, tmp_path: Path) -> None:
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip("npx is not installed")
    tool = [npx, "--yes", "@anthropic-ai/mcpb@2.1.2"]
    subprocess.run([*tool, "unpack", str(bundle), str(tmp_path / "out")], check=True, timeout=300)
    manifest = tmp_path / "out" / "manifest.json"
    subprocess.run([*tool, "validate", str(manifest)], check=True, timeout=300)
    packed = tmp_path / "again.mcpb"
    subprocess.run([*tool, "pack", str(tmp_path / "out"), str(packed)], check=True, timeout=300)
    assert packed.is_file()
    manifest.write_text("{}", encoding="utf-8")
    refused = subprocess.run([*tool, "validate", str(manifest)], timeout=300, check=False)
    assert refused.returncode != 0


def test_the_dockerfile_copies_what_there_is_and_starts_our_command() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for word in line.split()]
    assert copied
    for name in copied:
        assert name.startswith("--") or (ROOT / name).exists(), name
    command = json.loads(re.findall(r"^CMD (\[.+\])$", text, re.MULTILINE)[0])
    from stitch_mcp.cli.serve import command as serve

    known = {option for parameter in serve.params for option in parameter.opts}
    assert {word for word in command if word.startswith("--")} <= known
    assert re.search(r"^USER (?!root)\w+$", text, re.MULTILINE)
    assert not re.search(r"^(ENV|ARG).*TOKEN", text, re.MULTILINE), (
        "a token belongs to a container, not to an image"
    )
