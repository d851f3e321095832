"""The metrics that ncu collects for each question. Names are those of ncu 2025.3 for compute capability 9.0.

Names that another version or chip does not know are left out of the run, and what rests on them is "unknown".
"""

from collections.abc import Iterable

from stitch_tools.models.profile import KernelQuestion

DURATION_NS = "gpu__time_duration.sum"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
L1 = "l1tex__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_READ_BYTES = "dram__bytes_read.sum"
DRAM_WRITE_BYTES = "dram__bytes_write.sum"
ISSUE_ACTIVE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
INSTRUCTIONS = "smsp__inst_executed.sum"

TENSOR_INSTRUCTIONS = "sm__inst_executed_pipe_tensor.sum"
TENSOR_ACTIVE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
FMA_ACTIVE = "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
FADD = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
FMUL = "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"
HFMA = "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum"
DFMA = "smsp__sass_thread_inst_executed_op_dfma_pred_on.sum"

WARPS_ACTIVE = "sm__warps_active.avg.pct_of_peak_sustained_active"
ELIGIBLE = "smsp__warps_eligible.avg.per_cycle_active"
REGISTERS = "launch__registers_per_thread"
SHARED_STATIC = "launch__shared_mem_per_block_static"
SHARED_DYNAMIC = "launch__shared_mem_per_block_dynamic"
SHARED_DRIVER = "launch__shared_mem_per_block_driver"
MULTIPROCESSORS = "device__attribute_multiprocessor_count"

LOAD_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORE_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"
STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
LOAD_SECTOR_USE = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
STORE_SECTOR_USE = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"

SHARED_LOAD_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
SHARED_STORE_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
SHARED_LOAD_PASSES = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
SHARED_STORE_PASSES = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
SHARED_LOADS = "smsp__inst_executed_op_shared_ld.sum"
SHARED_STORES = "smsp__inst_executed_op_shared_st.sum"
DATA_PASSES_ACTIVE = "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"

LOCAL_INSTRUCTIONS = "smsp__sass_inst_executed_op_local.sum"
LOCAL_LOAD_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum"
LOCAL_STORE_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum"

ACTIVE_THREADS = "smsp__average_thread_inst_executed_per_inst_executed.ratio"
UNIFORM_BRANCHES = "smsp__sass_average_branch_targets_threads_uniform.pct"

LAUNCHED = (
    *(f"launch__{of}_dim_{axis}" for of in ("grid", "block") for axis in "xyz"),
    "device__attribute_compute_capability_major",
    "device__attribute_compute_capability_minor",
)
"""What newer versions print in columns of their own."""

OLDER_NAMES = {ACTIVE_THREADS: "smsp__thread_inst_executed_per_inst_executed.ratio"}
"""What ncu 2022.3 and 2024.1 call a metric. The other names are the same there, but 2022.3 lacks `gmma`."""

STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
"""Why warps wait; `selected` is the one that issues."""


def stall_metric(stall: str) -> str:
    """The metric with the warps that wait for this reason, per issued instruction."""
    return f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio"


_BOUND = (DURATION_NS, SM, MEMORY, DRAM, L2, L1, ISSUE_ACTIVE)
_STALLS = tuple(map(stall_metric, STALLS))
_LAUNCH = (REGISTERS, SHARED_STATIC, SHARED_DYNAMIC, SHARED_DRIVER, MULTIPROCESSORS)
METRICS: dict[KernelQuestion, tuple[str, ...]] = {
    "bound_by": (*_BOUND, DRAM_READ_BYTES, DRAM_WRITE_BYTES),
    "tensor_cores": (
        TENSOR_INSTRUCTIONS,
        TENSOR_ACTIVE,
        FMA_ACTIVE,
        FFMA,
        FADD,
        FMUL,
        HFMA,
        DFMA,
        INSTRUCTIONS,
        SM,
    ),
    "tail_wave": (*_LAUNCH, SM, MEMORY),
    "grid_size": (*_LAUNCH, SM, MEMORY, WARPS_ACTIVE),
    "occupancy": (*_LAUNCH, WARPS_ACTIVE, ELIGIBLE, ISSUE_ACTIVE, SM, MEMORY),
    "coalescing": (
        LOAD_REQUESTS,
        LOAD_SECTORS,
        STORE_REQUESTS,
        STORE_SECTORS,
        LOAD_SECTOR_USE,
        STORE_SECTOR_USE,
        MEMORY,
        *_STALLS,
    ),
    "bank_conflicts": (
        SHARED_LOAD_CONFLICTS,
        SHARED_STORE_CONFLICTS,
        SHARED_LOAD_PASSES,
        SHARED_STORE_PASSES,
        SHARED_LOADS,
        SHARED_STORES,
        DATA_PASSES_ACTIVE,
        *_STALLS,
    ),
    "spills": (
        LOCAL_INSTRUCTIONS,
        LOCAL_LOAD_SECTORS,
        LOCAL_STORE_SECTORS,
        LOAD_SECTORS,
        STORE_SECTORS,
        INSTRUCTIONS,
        MEMORY,
        *_STALLS,
    ),
    "divergence": (ACTIVE_THREADS, UNIFORM_BRANCHES, MEMORY),
    "stall": (ISSUE_ACTIVE, *_STALLS),
}
"""What each question needs. Counters shared between questions are collected once."""


def metrics_of(questions: Iterable[KernelQuestion]) -> tuple[str, ...]:
    """The metrics that these questions need together, each once; time and size of a launch always."""
    names = [DURATION_NS, *LAUNCHED, *(name for question in questions for name in METRICS.get(question, ()))]
    return tuple(dict.fromkeys(names))
