"""Starts the server for the workspace that the host's dialog asked for."""

import os
import sys

from stitch_mcp.cli import main

for name in ("STITCH_WORKSPACE", "STITCH_PYTHON", "CUDA_HOME"):
    # A host leaves what the user left empty as it stands in the manifest, or sets it to nothing.
    value = os.environ.get(name, "")
    if not value or value.startswith("${"):
        os.environ.pop(name, None)

sys.exit(main(["serve"]))
