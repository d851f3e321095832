"""Start of the zygote, run by path in the target interpreter: `python bootstrap.py DESCRIPTOR BOUND`.

Registers an empty `stitch_tools` package whose path is our folder, so that `stitch_tools.worker` can be imported
while nothing else of our installation, least of all our site-packages, is on the interpreter's path.
"""

import os
import sys
import types


def register_package() -> None:
    """Make `import stitch_tools.worker...` work without running the package's own `__init__`."""
    worker = os.path.dirname(os.path.abspath(__file__))
    # Python puts a script's folder first on the path; our module names must not shadow anybody's.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != worker]
    package = types.ModuleType("stitch_tools")
    package.__path__ = [os.path.dirname(worker)]
    sys.modules["stitch_tools"] = package


if __name__ == "__main__":
    register_package()
    from stitch_tools.worker import zygote

    sys.exit(zygote.main(int(sys.argv[1]), bound=sys.argv[2] == "1"))
