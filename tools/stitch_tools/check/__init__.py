"""Is the program right? The controller's side: seeds, memory, deadlines and the verdict."""

from stitch_tools.check.judge import check_program
from stitch_tools.check.options import CheckOptions
from stitch_tools.check.reference import NoDeviceError, ReferenceServer

__all__ = ["CheckOptions", "NoDeviceError", "ReferenceServer", "check_program"]
