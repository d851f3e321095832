"""Start of the zygote, run by path in the target interpreter: `python bootstrap.py DESCRIPTOR BOUND`.

`python bootstrap.py probe` prints the isolation level of the machine instead, in any Python, and
`python bootstrap.py python_host ...` runs one `ModelNew` in a process of its own.

Registers an empty `stitch_tools` package whose path is our folder, so that `stitch_tools.worker` can be
imported while nothing else of our installation, least of all our site-packages, is on the interpreter's path.
"""

import sys
import types
from pathlib import Path


def register_package() -> None:
    """Make `import stitch_tools.worker...` work without running the package's own `__init__`."""
    worker = Path(__file__).resolve().parent
    # Python puts a script's folder first on the path; our module names must not shadow anybody's.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != worker]
    package = types.ModuleType("stitch_tools")
    package.__path__ = [str(worker.parent)]
    sys.modules["stitch_tools"] = package


if __name__ == "__main__":
    register_package()
    from stitch_tools.worker import python_host, zygote

    if sys.argv[1] == "probe":
        zygote.print_isolation()
    elif sys.argv[1] == "python_host":
        sys.exit(python_host.main(*sys.argv[2:]))
    else:
        sys.exit(zygote.main(int(sys.argv[1]), bound=sys.argv[2] == "1"))
