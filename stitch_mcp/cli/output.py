"""Output of a command: progress on stderr; on stdout either tables or exactly one JSON object."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from stitch_mcp.cli.streams import give_up, tell
from stitch_mcp.views.table import ReportSection, print_sections
from stitch_tools.errors import StoreError

SCHEMA_VERSION = 1


def print_object(command: str, fields: Mapping[str, object], exit_code: int) -> None:
    """Print the one JSON object of a call: schema version, command, exit code, then the command's fields."""
    head: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "ok": exit_code == 0,
        "exit_code": int(exit_code),
    }
    text = json.dumps({**head, **fields}, default=_plain, ensure_ascii=False, indent=2)
    # A path may hold bytes that are no UTF-8; what stands for them is spelled as JSON spells it.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
    sys.stdout.flush()


class CommandOutput:
    """Where one command sends progress and result."""

    def __init__(self, command: str, *, as_json: bool) -> None:
        self.command = command
        self.as_json = as_json
        self._start = time.monotonic()

    def progress(self, sentence: str) -> None:
        """Show a progress sentence with the seconds since the start, on stderr."""
        tell(self.stamped(sentence))

    def stamped(self, sentence: str) -> str:
        """A sentence with the seconds since the start."""
        return f"[{time.monotonic() - self._start:6.1f} s] {sentence}"

    def finish(
        self, fields: Mapping[str, object], sections: Sequence[ReportSection], exit_code: int = 0
    ) -> int:
        """Print the result and return the exit code for click to hand on.

        Raises:
            StoreError: stdout cannot be written, on a full disk for example.
        """
        try:
            if self.as_json:
                print_object(self.command, fields, exit_code)
            else:
                print_sections(sections, sys.stdout)
        except BrokenPipeError:
            # The reader has gone (`| head`): no failure.
            give_up(sys.stdout)
        except OSError as error:
            raise StoreError(
                f"the result cannot be written to stdout: {error.strerror or error}",
                hint="send stdout elsewhere; what the command wrote into its folders is kept",
            ) from error
        return int(exit_code)


def _plain(value: object) -> Any:
    """JSON for facts, paths and sequences."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, tuple | set | frozenset):
        return list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] # any JSON
    return str(value)
