"""A small reference, programs for it, and clients of servers over its workspace."""

import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from stitch_mcp.server.server_context import ServerContext, open_server_context

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x + y)


def get_inputs():
    return [torch.randn(16, 32), torch.randn(16, 32)]
"""

PROGRAM = """
#include "stitch/abi.h"

struct StitchHandle {};

namespace {
const float* floats(const DLTensor& tensor) {
  return reinterpret_cast<const float*>(static_cast<const char*>(tensor.data) + tensor.byte_offset);
}
}  // namespace

int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }

int32_t stitch_init(const StitchInitArgs*, StitchHandle** handle) {
  *handle = new StitchHandle;
  return STITCH_OK;
}

int32_t stitch_plan(StitchHandle*, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
  if (count != 2 || inputs[0].ndim != 2) return STITCH_UNSUPPORTED;
  StitchTensorSpec& output = plan->outputs[0];
  output.ndim = 2;
  output.dtype = inputs[0].dtype;
  output.shape[0] = inputs[0].shape[0];
  output.shape[1] = inputs[0].shape[1];
  plan->num_outputs = 1;
  plan->workspace_bytes = 0;
  plan->flags = 0;
  return STITCH_OK;
}

int32_t stitch_forward(StitchHandle*, const StitchForwardArgs* args) {
  const float* x = floats(args->inputs[0]);
  const float* y = floats(args->inputs[1]);
  float* out = const_cast<float*>(floats(args->outputs[0]));
  const int64_t size = args->inputs[0].shape[0] * args->inputs[0].shape[1];
#pragma omp parallel for simd
  for (int64_t i = 0; i < size; ++i) {
    const float sum = x[i] + y[i];
    out[i] = sum < 0.0f ? 0.0f : sum;
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle*) { return ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
"""

# The compiler evaluates these sums itself, seconds for each.
SLOW_TO_COMPILE = "\n".join(
    f"constexpr long sum_{n}() {{ long s = {n}; for (long i = 0; i < 16000000; ++i) s += i; return s; }}\n"
    f"static_assert(sum_{n}() > 0);"
    for n in range(40)
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a reference, that no setting of the machine overrules."""
    monkeypatch.delenv("STITCH_WORKSPACE", raising=False)
    # Who else times something on this machine is not what these tests are about.
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path / "locks"))
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "model.py").write_text(REFERENCE, encoding="utf-8")
    return folder


@pytest.fixture
def server_context(workspace: Path) -> Generator[ServerContext]:
    """The room of a server over the workspace, its jobs ended afterwards."""
    found = open_server_context({"workspace": workspace})
    yield found
    found.supervisor.close()


def until(happened: Callable[[], bool]) -> None:
    """Return as soon as `happened` says so; fail after half a minute."""
    deadline = time.monotonic() + 30.0
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
