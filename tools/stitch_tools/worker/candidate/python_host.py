"""Runs one `ModelNew` once, in a fresh interpreter, under a tool that watches the process.

Usage: bootstrap.py python_host JOB INIT_FD INPUTS_FD. Prints `done`, or `failed STEP STATUS MESSAGE`, as the
host of native programs does.
"""

import base64
import json
from pathlib import Path


def main(job_file: str, init_fd: str, inputs_fd: str) -> int:
    """Exit code: 0 when the forward ran through."""
    # Not before a program is to be run: the zygote's own start must not wait for it.
    import torch

    from stitch_tools.worker.candidate.python_program import PythonProgram
    from stitch_tools.worker.precision import set_precision
    from stitch_tools.worker.runtime.native import ProgramError
    from stitch_tools.worker.tensors import map_pack
    from stitch_tools.worker.trees import fresh_copy, unflatten

    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    try:
        set_precision(job["matmul_precision"], job["conv_precision"])
        program = PythonProgram(job["folder"], job["main"], device="cuda")
        init = map_pack(int(init_fd), job["init"], writable=True)
        arguments = unflatten(job["init_structure"], init)
        program.init(base64.b64decode(job["generator"]), arguments, training=job["training"])
        mapped = map_pack(int(inputs_fd), job["inputs"], writable=True)
        program.run(unflatten(job["structure"], [fresh_copy(tensor, "cuda") for tensor in mapped]), b"")
        torch.cuda.synchronize()
    except ProgramError as error:
        code = 2 if error.status == "unsupported" else 1
        print("failed", error.step, code, " ".join(error.message.split())[-400:], flush=True)
        return 3
    print("done", flush=True)
    return 0
