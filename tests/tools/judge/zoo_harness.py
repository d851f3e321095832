"""Other harnesses beside the judge, each in a process that a candidate may ruin: a line in, a line out."""

import json
import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.tools.judge.zoo_runner import ZOO, Case, Court

_HERE = Path(__file__).resolve().parent
_LIMIT_S = 300.0


class Harness:
    """One of the harnesses; started when it is asked, and again after a candidate has ended it."""

    def __init__(self, command: Sequence[str], paths: Sequence[str]) -> None:
        self._command = list(command)
        # Another candidate at the same path, as long and as old in seconds, would not be read otherwise.
        self._env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, court: Court, case: Case) -> dict[str, Any] | None:
        """What it says of the case; None where the candidate has ended it, or was not built."""
        candidate = str(case.folder / case.main)
        if case.native:
            artifact = court.program(case)[1]
            if artifact is None or artifact.artifact is None:
                return None
            candidate = artifact.artifact
        return self.exchange(
            {
                "name": case.name,
                "reference": str(ZOO / "references" / f"{case.reference}.py"),
                "candidate": candidate,
                "source": str(case.folder / case.main),
                "folder": str(court.root),
                "timed": "timing" in case.caught_by,
            }
        )

    def exchange(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to one request; None where the candidate has ended the harness."""
        said = self._exchange(request)
        if said is None:
            self.close()
        return said

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], _LIMIT_S)[0]:
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None


def naive(python: str, paths: Sequence[str]) -> Harness:
    """The one of `zoo_naive.py`."""
    return Harness([python, str(_HERE / "zoo_naive.py")], paths)


def kernelbench(python: str, paths: Sequence[str], checkout: str) -> Harness:
    """KernelBench's own, of this checkout."""
    return Harness([python, str(_HERE / "zoo_kernelbench.py"), checkout], paths)
