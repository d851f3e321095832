"""Each rule of a diagnosis names its cause on a report that has it, and rules it out on one that has not."""

from dataclasses import replace
from typing import Any

import pytest

from stitch_tools.diagnose.diagnosis import diagnose, predictions_of, score
from stitch_tools.diagnose.evidence import ProfileEvidence, amdahl
from stitch_tools.diagnose.rules import RULES
from stitch_tools.diagnose.taxes import taxes_of
from stitch_tools.models.graph import (
    Ceilings,
    Graph,
    GraphInput,
    GraphNode,
    GraphOutput,
    TransferRates,
    ValueRef,
)
from stitch_tools.models.profile import (
    HostCall,
    KernelAnswer,
    KernelProfile,
    KernelTime,
    LowerBounds,
    ModuleTime,
    ProfileDiagnosis,
    Quantity,
    SystemProfile,
    TimeOwner,
    Transfer,
)
from stitch_tools.models.task import Contract, TensorSpec

CEILINGS = Ceilings(
    device="a GPU",
    target="cuda:sm_90",
    copy_bytes_per_s=3e12,
    last_level_cache_bytes=50 << 20,
    flops_per_s={"fp32": 5e13, "tf32": 4e14},
    launch_us=1.5,
)


def kernel(name: str, total_us: float, count: float = 1.0, **facts: Any) -> KernelTime:
    owner: TimeOwner = facts.pop("owner", "pytorch")
    return KernelTime(
        name=name, short_name=name, count=count, total_us=total_us, share=0.0, owner=owner, **facts
    )


def evidence(*kernels: KernelTime, target: str = "cuda:sm_90", **facts: Any) -> ProfileEvidence:
    """A report that is limited by its kernels alone, but for `facts`."""
    total = sum(row.total_us for row in kernels) or 1000.0
    rows = tuple(row.model_copy(update={"share": row.total_us / total}) for row in kernels)
    known = {name: facts.pop(name) for name in ("kernels", "graph", "bounds", "ceilings") if name in facts}
    contract = facts.pop("contract", Contract())
    count = sum(row.count for row in kernels)
    fields = {
        "origin": "nsys",
        "iterations": 3,
        "wall_us": total + 20.0,
        "untraced_us": total + 12.0,
        "busy_us": total,
        "busy_share": 0.97,
        "launches": count,
        "device_activities": count,
        "kernels": rows,
        **facts,
    }
    system = SystemProfile.model_validate(fields)
    return ProfileEvidence("reference", target, system, contract, **known)


HEALTHY = evidence(
    kernel("one_large_kernel", 1000.0, owner="own"), ceilings=CEILINGS, bounds=LowerBounds(fused_us=300.0)
)
ANSWER = KernelAnswer(
    question="coalescing",
    verdict="no",
    is_problem=True,
    summary="of 32 bytes read 4 are used",
    evidence=(Quantity(name="sectors per request", value=31.0, origin="ncu"),),
    saves_share=0.8,
    action="let neighbouring threads read neighbouring elements",
    file="program.cu",
    line=12,
)
PROBLEM = KernelProfile(kernel="one_large_kernel", origin="ncu", share=1.0, answers=(ANSWER,))
CASES: dict[str, ProfileEvidence] = {
    "host_bound": evidence(
        kernel("small", 400.0, 100), untraced_us=1100.0, host_between_launches_us=8.0, ceilings=CEILINGS
    ),
    "recurrent_steps": evidence(
        kernel("LSTM_elementWise_fp", 900.0, 600, owner="vendor"),
        modules=(ModuleTime(path="lstm", type="LSTM", calls=1, device_us=900.0, host_us=900.0),),
    ),
    "sync_in_loop": evidence(
        kernel("a", 1000.0, 10),
        syncs=(HostCall(name="cudaStreamSynchronize", count=4, total_us=600.0),),
        wall_us=1310.0,
        untraced_us=1300.0,
        idle_us=300.0,
        host_between_launches_us=40.0,
        launch_calls_us=50.0,
    ),
    "transfer_pageable": evidence(
        kernel("a", 1000.0),
        transfers=(
            Transfer(direction="host_to_device", count=1, bytes=4e6, total_us=400.0, pageable_share=1.0),
        ),
    ),
    "transfer_heavy": evidence(
        kernel("a", 1000.0),
        transfers=(
            Transfer(direction="device_to_host", count=1, bytes=2e7, total_us=400.0, pageable_share=0.0),
        ),
    ),
    "memory_calls": evidence(
        kernel("a", 1000.0),
        memory_calls=(HostCall(name="cudaMalloc", count=2, total_us=300.0),),
        wall_us=1320.0,
        untraced_us=1305.0,
    ),
    "fp32_products": evidence(kernel("ampere_sgemm_128x64_tn", 900.0, 3, owner="vendor"), kernel("b", 100.0)),
    "unfused_attention": evidence(
        kernel("softmax_warp_forward", 300.0, op="aten::_softmax"),
        kernel("batched", 500.0, op="aten::bmm", owner="vendor"),
    ),
    "norm_passes": evidence(
        kernel("cudnn::bn_fw_tr_1C11_kernel_NCHW", 400.0, 20), kernel("conv", 600.0, 20, owner="vendor")
    ),
    "layout_conversions": evidence(
        kernel("nchwToNhwcKernel", 300.0, 10, owner="vendor"), kernel("conv", 700.0, 10, owner="vendor")
    ),
    "pointwise_passes": evidence(
        kernel("vectorized_elementwise_kernel", 500.0, 10), kernel("conv", 500.0, 10, owner="vendor")
    ),
    "small_kernels": evidence(kernel("tiny", 600.0, 300), ceilings=CEILINGS),
    "scans": evidence(
        kernel("tensor_kernel_scan_innermost_dim", 400.0, op="aten::cumsum"), kernel("a", 600.0)
    ),
    "kernel_problem": evidence(kernel("one_large_kernel", 1000.0, owner="own"), kernels=(PROBLEM,)),
    "interpreter_overhead": evidence(kernel("aten::add_x", 500.0, 200), target="cpu", busy_share=0.5),
    "pointwise_passes_cpu": evidence(
        kernel("aten::gelu", 500.0, op="aten::gelu"), kernel("aten::addmm", 500.0), target="cpu"
    ),
    "memory_passes": evidence(
        kernel("aten::copy_", 400.0, owner="copy"), kernel("aten::addmm", 600.0), target="cpu"
    ),
    "math_calls": evidence(
        kernel("libm: tanhf", 500.0, owner="other"), kernel("step", 500.0, owner="own"), target="cpu"
    ),
    "hot_function": evidence(kernel("aten::addmm", 900.0), kernel("aten::x", 100.0), target="cpu"),
    "near_bound": evidence(
        kernel("one_large_kernel", 1000.0, owner="own"), bounds=LowerBounds(fused_us=950.0)
    ),
}


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_each_rule_names_its_cause_first_where_it_is_the_only_one(rule: str) -> None:
    found = diagnose(CASES[rule])
    assert [row.rule for row in found.bottlenecks][:1] == [rule], found
    first = found.bottlenecks[0]
    assert all((first.cause, first.action, first.evidence))
    assert 1.0 <= first.gain.low <= first.gain.expected <= first.gain.high
    assert all(row.origin for row in first.evidence)


def test_pinning_wins_what_this_machine_copies_faster_from_pinned_memory() -> None:
    case = CASES["transfer_pageable"]
    rates = TransferRates(to_device_pinned=2e10, to_host_pinned=1e9)
    measured = replace(case, ceilings=CEILINGS.model_copy(update={"transfers": rates}))
    pinning = next(row for row in diagnose(measured).bottlenecks if row.rule == "transfer_pageable")
    # 4 MB in 400 us; at 20 GB/s they take 200 us.
    assert pinning.gain.predicted_us == pytest.approx(measured.total_us - 200.0)
    assert [(row.value, row.origin) for row in pinning.evidence if row.unit == "B/s"] == [(2e10, "ceilings")]
    slow = rates.model_copy(update={"to_device_pinned": 1.0e10})
    no_faster = replace(case, ceilings=CEILINGS.model_copy(update={"transfers": slow}))
    assert "transfer_pageable" in {row.rule for row in diagnose(no_faster).ruled_out}


def test_a_healthy_report_has_nothing_and_says_what_was_ruled_out() -> None:
    found = diagnose(HEALTHY)
    assert found.bottlenecks == ()
    ruled_out = {row.rule for row in found.ruled_out}
    applicable = {rule.name for rule in RULES if rule.applies(HEALTHY)}
    # `kernel_problem` says nothing where no kernel was looked at.
    assert applicable - ruled_out <= {"kernel_problem"}
    assert all(
        any(letter.isdigit() for letter in row.reason) for row in found.ruled_out if "takes" in row.reason
    )


def test_at_most_three_come_the_one_that_pays_most_first() -> None:
    many = evidence(
        kernel("tiny", 300.0, 200),
        kernel("vectorized_elementwise_kernel", 300.0, 50),
        kernel("ampere_sgemm_128x64_tn", 300.0, 5, owner="vendor"),
        kernel("cudnn::bn_fw_tr_1C11_kernel_NCHW", 300.0, 50),
        untraced_us=2500.0,
        syncs=(HostCall(name="cudaStreamSynchronize", count=1, total_us=90.0),),
        ceilings=CEILINGS,
    )
    found = diagnose(many)
    assert len(found.bottlenecks) == 3
    gains = [row.gain.expected for row in found.bottlenecks]
    assert gains == sorted(gains, reverse=True)
    assert found.bottlenecks[0].rule == "host_bound"
    assert found.bound_by == "host"


def test_no_latency_is_predicted_from_a_recorded_time() -> None:
    case = evidence(
        kernel("vectorized_elementwise_kernel", 500.0, 10),
        kernel("conv", 500.0, owner="vendor"),
        untraced_us=None,
    )
    found = diagnose(case)
    assert found.bottlenecks[0].gain.predicted_us is None
    assert predictions_of(case, found, "task") == ()
    assert [tax.kind for tax in taxes_of(case)] == []


def test_amdahl_never_promises_more_than_the_whole() -> None:
    gain = amdahl(100.0, -5.0, 50.0, 400.0)
    assert (gain.low, gain.expected, gain.predicted_us) == (1.0, 2.0, 50.0)
    assert gain.high == pytest.approx(50.0)


def test_predictions_are_scored_beside_the_naive_one() -> None:
    case = CASES["host_bound"]
    (first, *_) = predictions_of(case, diagnose(case), "task")
    assert first.rule == "host_bound"
    assert first.naive_us == case.system.busy_us
    scored = score(first, "program", 430.0)
    assert scored.error == pytest.approx((first.predicted_us - 430.0) / 430.0)
    assert scored.naive_error == pytest.approx((400.0 - 430.0) / 430.0)
    assert first.low_us <= first.predicted_us <= first.high_us


def test_the_three_taxes_have_upper_bounds_and_origins() -> None:
    spec = TensorSpec(name="x", shape=(1 << 20,), stride=(1,), dtype="float32")
    nodes = tuple(
        GraphNode(
            name=f"n{index}",
            op="aten.relu.default",
            args=(ValueRef(ref="x" if index == 0 else f"n{index - 1}"),),
            outputs=(spec,),
            flops=1 << 20,
            bytes_read=4 << 20,
            bytes_written=4 << 20,
        )
        for index in range(4)
    )
    graph = Graph(
        source="export",
        inputs=(GraphInput(name="x", kind="user", target="0", spec=spec),),
        nodes=nodes,
        outputs=(GraphOutput(value=ValueRef(ref="n3")),),
    )
    case = evidence(kernel("relu", 400.0, 100), untraced_us=1000.0, ceilings=CEILINGS, graph=graph)
    taxes = {tax.kind: tax for tax in taxes_of(case)}
    assert set(taxes) == {"launch", "bulk_synchronous", "traffic"}
    assert taxes["bulk_synchronous"].ms == pytest.approx(99 * 1.5 / 1e3)
    # Eight passes over 4 MiB, of which the first read and the last write have to be.
    between = next(row.value for row in taxes["traffic"].evidence if row.name == "bytes between operations")
    assert between == 6 * (4 << 20)
    for tax in taxes.values():
        assert tax.saves_at_most_ms <= case.total_us / 1e3
        assert {row.origin for row in tax.evidence}


def test_a_diagnosis_is_stored_as_it_is() -> None:
    found = diagnose(CASES["fp32_products"])
    assert ProfileDiagnosis.from_json_bytes(found.canonical_json()) == found
