"""A run with five programs of two authors: the third is the best, is certified, and all five are shown."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stitch_mcp.certificates import verify_certificate
from stitch_mcp.cli import main
from stitch_mcp.history import show_run
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.request_inputs import job_request
from stitch_mcp.server.server_context import ServerContext, open_server_context
from stitch_mcp.server.tool import ToolAnswer
from stitch_mcp.server.tool_list import find_tool
from stitch_mcp.server.tools.check_program import CheckAnswer
from stitch_mcp.server.tools.solve import SolveAnswer
from stitch_planner.workbench import Workbench
from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import STITCHER, Program
from stitch_tools.models.verdict import Bench
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession

pytestmark = pytest.mark.exhaustive

# The stitcher has no template for a running sum: PyTorch does most of its program's work, which is partial.
REFERENCE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(torch.relu(x), dim=1)


def get_inputs():
    return [torch.randn(256, 256)]
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
  if (count != 1 || inputs[0].ndim != 2) return STITCH_UNSUPPORTED;
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
  // Written through, so that the compiler keeps every pass.
  volatile float* out = const_cast<float*>(floats(args->outputs[0]));
  const int64_t rows = args->inputs[0].shape[0], columns = args->inputs[0].shape[1];
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    for (int pass = 0; pass < PASSES; ++pass) {
      double sum = 0.0;
      for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
        sum += CLAMPED;
        out[i] = static_cast<float>(sum);
      }
    }
  }
  return STITCH_OK;
}

const char* stitch_last_error(StitchHandle*) { return ""; }

void stitch_free(StitchHandle* handle) { delete handle; }
"""
RELU = "(x[i] < 0.0f ? 0.0f : x[i])"
DRAFTS = ((24, RELU), (1, "x[i]"), (1, RELU), (12, RELU))
"""How often each of the agent's programs does its work, and on which numbers: the second one is wrong."""


@dataclass(frozen=True)
class BusyBench(Workbench):
    """Times beside eager alone, and as it is while others use the machine: the programs differ by factors."""

    def benchmark(self, trial: Trial, *, quick: bool, other: Program | None = None) -> Bench:
        del other
        options = BenchOptions(quick=quick, baselines=("eager",), cache_dir=self.cache_dir)
        few = {"min_rounds": 10, "max_rounds": 10, "blocks_per_visit": 1}
        # No probe: on a busy machine one of them doubts a time, and this test is about what a run keeps.
        return benchmark_program(
            trial, replace(options, rules=replace(options.rules, ignore_others=True, **few)), probes=()
        )


class Agent:
    """Calls tools as a client does, each in this process on one warm session."""

    def __init__(self, server_context: ServerContext, session: TargetSession) -> None:
        self._server_context = server_context
        self._workbench = BusyBench(server_context.workspace, emit=print, warm=session)

    def call(self, tool: str, **arguments: object) -> ToolAnswer:
        found = find_tool(tool)
        request = found.request.model_validate(arguments)
        subject = job_request(self._server_context, found, request).subject
        context = JobContext(self._server_context.config, self._workbench, subject, print, print)
        assert found.work is not None
        return found.work(request, context)


@pytest.fixture
def ambitious(workspace: Path) -> Generator[ServerContext]:
    """A server whose runs have a goal that no program reaches: the stitcher is asked, too."""
    server_context = open_server_context({"workspace": workspace, "min_speedup": 1000.0})
    yield server_context
    server_context.supervisor.close()


def test_the_third_of_five_programs_is_certified_and_all_five_are_shown(
    ambitious: ServerContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server_context, programs = ambitious, list[str]()
    monkeypatch.chdir(server_context.root)  # a job works in the workspace
    (server_context.root / "sums.py").write_text(REFERENCE, encoding="utf-8")
    with TargetSession(find_interpreter(None, server_context.root)) as session:
        agent = Agent(server_context, session)
        run_id = agent.call("analyze_reference", reference="sums.py").run_id
        assert run_id is not None
        for passes, clamped in DRAFTS:
            source = PROGRAM.replace("PASSES", str(passes)).replace("CLAMPED", clamped)
            checked = agent.call("check_program", run_id=run_id, files={"program.cpp": source})
            assert isinstance(checked, CheckAnswer)
            programs.append(checked.program_id or "")
            if checked.counts:
                agent.call("benchmark_program", run_id=run_id, program=checked.program_id)
        solved = agent.call("solve", run_id=run_id)
    assert isinstance(solved, SolveAnswer)
    seen = show_run(server_context.root, run_id)
    assert [row.author for row in seen.attempts] == ["outside"] * 4 + [STITCHER]
    assert [row.status for row in seen.attempts] == ["accepted", "incorrect", *["accepted"] * 3]
    assert [row.counts for row in seen.attempts] == [True, False, True, True, False], (
        "PyTorch does the fifth's"
    )
    assert [row.round for row in seen.attempts if row.best] == [2], seen.attempts
    assert [row.round for row in seen.attempts if row.certified] == [2]
    assert (solved.program_id, solved.counts) == (programs[2], True)
    assert solved.certificate is not None
    assert verify_certificate(solved.certificate).program_id.startswith(programs[2])
    decisions = [row.payload["decision"] for row in seen.events if row.kind == "decision_made"]
    assert decisions == ["optimize", "accept"]
    folders = sorted(
        path.parent.name for path in Path(seen.folder).glob("rounds/*/program") if any(path.iterdir())
    )
    assert folders == ["000", "001", "002", "003", "004"], "each one can be read"
    assert main(["runs", "show", run_id, "--workspace", str(server_context.root)]) == 0
    shown = capsys.readouterr().out
    assert all(row.program_id[:16] in shown for row in seen.attempts)
    assert "best, certified" in shown
