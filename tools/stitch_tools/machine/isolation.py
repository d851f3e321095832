"""How well children can be isolated on this machine, without starting a target interpreter."""

import subprocess
import sys
from pathlib import Path

from pydantic import TypeAdapter

import stitch_tools
from stitch_tools.confine import linux
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models.verdict import SandboxLevel

BOOTSTRAP = Path(stitch_tools.__file__).parent / "confine" / "bootstrap.py"
_TIMEOUT_S = 30.0


def probe_isolation() -> SandboxLevel:
    """The strongest isolation level of this machine, tried out in a process of its own.

    Raises:
        EnvironmentMissingError: not Linux on x86-64.
    """
    if not linux.is_supported():
        raise EnvironmentMissingError(
            "children can be isolated on x86-64 Linux only",
            hint="use a Linux machine (WSL2 counts)",
        )
    command = [sys.executable, str(BOOTSTRAP), "probe"]
    done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8", timeout=_TIMEOUT_S)
    levels: TypeAdapter[SandboxLevel] = TypeAdapter(SandboxLevel)
    return levels.validate_python(done.stdout.strip())


def fix_for(level: SandboxLevel, landlock_abi: int) -> str:
    """The next step towards level full."""
    if level == "full":
        return ""
    if not landlock_abi:
        return (
            "boot a kernel >= 5.13 with landlock among its security modules (kernel option lsm=landlock,...)"
        )
    return (
        "allow unprivileged user namespaces: on Ubuntu sysctl kernel.apparmor_restrict_unprivileged_userns=0;"
        " in Docker run with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
    )
