"""Describes the machine and tools of a run, for certificates."""

import os
import platform

from stitch_tools import __version__
from stitch_tools.machine.devices import Target, cpu_info, find_gpus
from stitch_tools.models.environment import Environment
from stitch_tools.run.interpreter import Interpreter


def describe_environment(interpreter: Interpreter, target: Target) -> Environment:
    """This machine with the target interpreter, as known before anything was built."""
    return Environment(
        stitch_version=__version__,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_info().model,
        cpu_count=os.cpu_count(),
        gpu=target.gpu.name if target.gpu else None,
        gpu_driver=find_gpus().driver if target.gpu else None,
        python=interpreter.python_version,
        torch=interpreter.torch_version,
    )
