"""`python -m stitch_mcp`: the command line, wherever this package is installed."""

import sys

from stitch_mcp.cli import main

if __name__ == "__main__":
    sys.exit(main())
