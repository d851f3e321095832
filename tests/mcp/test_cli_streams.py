"""Standard streams that are full or closed, and text that is no UTF-8."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_mcp.cli.output import print_object

COMMAND = "from stitch_mcp.cli import main; raise SystemExit(main())"


def shell(
    redirections: str, *arguments: str, code: str = COMMAND, **more: str
) -> subprocess.CompletedProcess[str]:
    """Python code with arguments and more of an environment, its streams redirected by a shell."""
    command = ["sh", "-c", f'"$@" {redirections}', "sh", sys.executable, "-c", code, *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**env, **more})


@pytest.mark.parametrize("more", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [("config", "show"), ("config", "show", "--json")])
def test_a_result_that_cannot_be_written_is_one_plain_error(
    arguments: tuple[str, ...], more: dict[str, str]
) -> None:
    done = shell(">/dev/full", *arguments, **more)
    assert done.returncode == 5
    assert done.stderr.startswith(
        "error: the result cannot be written to stdout: No space left on device\n  next:"
    )
    assert done.stderr.count("\n") == 2
    assert shell(">/dev/full 2>&1", *arguments, **more).returncode == 5


def test_closed_streams_end_no_command() -> None:
    done = shell(">&-", "config", "show")
    assert (done.returncode, done.stderr) == (0, "")
    done = shell("<&- 2>&-", "config", "show", "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)
    assert shell("2>&-", "no-such-command").stdout == "", "an error must not land in stdout"


def test_progress_that_cannot_be_written_ends_no_work() -> None:
    code = (
        "from stitch_mcp.cli.output import CommandOutput\n"
        "CommandOutput('x', as_json=True).progress('half')\nprint('done')"
    )
    done = shell("2>/dev/full", code=code)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_path_that_is_no_text_can_be_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(os.fsdecode(b"n\xe4\xff.py"))
    print_object("x", {"path": path}, 0)
    assert json.loads(capsys.readouterr().out)["path"] == str(path)
