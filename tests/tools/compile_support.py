"""Small programs for tests: a library that exports the whole ABI and does nothing, and a way to store one."""

from collections.abc import Mapping

from stitch_tools.models.program import Program
from stitch_tools.storage.store import Store

EMPTY_PROGRAM = """#include "stitch/abi.h"

struct StitchHandle { int unused; };

extern "C" {
int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }
int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle();
  return STITCH_OK;
}
int32_t stitch_plan(StitchHandle*, const DLTensor*, int32_t, StitchPlan*) { return STITCH_UNSUPPORTED; }
int32_t stitch_forward(StitchHandle*, const StitchForwardArgs*) { return STITCH_UNSUPPORTED; }
const char* stitch_last_error(StitchHandle*) { return ""; }
void stitch_free(StitchHandle* handle) { delete handle; }
}
"""
"""Source of a native program, C++ and CUDA alike, that refuses all inputs."""


def store_program(
    store: Store, files: Mapping[str, str], main: str = "main.cpp", target: str = "cpu"
) -> Program:
    """The native program made of `files`, whose content is put into `store`."""
    entries = store.put_files({path: text.encode("utf-8") for path, text in files.items()})
    return Program(format="native", target=target, files=entries, main=main, author="test")
