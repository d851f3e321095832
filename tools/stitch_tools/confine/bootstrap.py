"""Start of the zygote, run by path in the target interpreter: `python bootstrap.py DESCRIPTOR BOUND`.

In any Python, `probe` instead of the numbers prints the isolation level of the machine, `compile ...` runs
one compiler confined, `gpu_state ...` reads a GPU's clocks, `python_host ...` runs one `ModelNew` alone, and
`profile_host ...` runs a reference or program under a profiler.

Registers an empty `stitch_tools` package whose path is our folder, so that `stitch_tools.worker` can be
imported while nothing else of our installation, least of all our site-packages, is on the interpreter's path.
"""

import sys
import types
from pathlib import Path


def register_package() -> None:
    """Make `import stitch_tools.worker...` work without running the package's own `__init__`."""
    folder = Path(__file__).resolve().parent
    # Python puts a script's folder first on the path; our module names must not shadow anybody's.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
    package = types.ModuleType("stitch_tools")
    package.__path__ = [str(folder.parent)]
    sys.modules["stitch_tools"] = package


def main(words: list[str]) -> int:
    """Exit code of what the first word names; only its own modules are imported."""
    if words[0] == "compile":
        from stitch_tools.confine import compiler_run

        return compiler_run.main(words[1])
    if words[0] == "gpu_state":
        from stitch_tools.worker import gpu_state

        return gpu_state.main(words[1:])
    if words[0] == "python_host":
        from stitch_tools.worker.candidate import python_host

        return python_host.main(*words[1:])
    if words[0] == "profile_host":
        from stitch_tools.worker.profiled import host

        return host.main(*words[1:])
    from stitch_tools.confine import zygote

    if words[0] == "probe":
        zygote.print_isolation()
        return 0
    return zygote.main(int(words[0]), bound=words[1] == "1")


if __name__ == "__main__":
    register_package()
    sys.exit(main(sys.argv[1:]))
