"""Who works on a CPU is told nothing about GPUs, unless that was asked for."""

import json
from pathlib import Path

import pytest

from stitch_mcp.config import Config, configure
from stitch_mcp.server.artifacts import Artifact
from stitch_mcp.server.docs import advice
from stitch_mcp.server.evidence_summary import summarized
from stitch_mcp.server.render import render
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tools.compile_program import gravest
from stitch_mcp.server.tools.search_docs import SearchDocs, reply
from stitch_tools.models.program import Build, Diagnostic
from stitch_tools.models.verdict import Check, DrawResult, OutputError

GPU_WORDS = ("cuda", "nvcc", "sm_", "kernel", "__device__")


@pytest.fixture
def server_context(tmp_path: Path) -> ServerContext:
    return ServerContext(config=Config(workspace=tmp_path, cache_dir=tmp_path / "cache"))


@pytest.mark.parametrize(
    ("query", "note"),
    [
        ("openmp simd reduction false sharing", "Divide a CPU loop among threads"),
        ("oneDNN matmul post-ops", "Large products and convolutions with oneDNN"),
        ("_mm256_fmadd_ps", "Let the CPU loop vectorise"),
        ("layernorm and gelu fused per row", "Pass over memory once on the CPU"),
    ],
)
def test_questions_about_a_cpu_find_notes_about_cpus(
    query: str, note: str, server_context: ServerContext
) -> None:
    answer = reply(SearchDocs(query=query), server_context)
    assert answer.hits[0]["id"] == f"notes/{note}"
    notes = [hit["id"] for hit in answer.hits if hit["id"].startswith("notes/")]
    assert all("CPU" in name or "oneDNN" in name for name in notes)


def test_a_question_about_a_cuda_function_is_answered_on_a_cpu_too(
    server_context: ServerContext,
) -> None:
    answer = reply(SearchDocs(query="cudaMallocAsync stream-ordered pool"), server_context)
    assert answer.confidence in ("exact", "high")
    assert "pool" in answer.hits[0]["symbol"]
    about_cpu = reply(SearchDocs(query="cudaMallocAsync stream-ordered pool", arch="cpu"), server_context)
    assert about_cpu.confidence not in ("exact", "high")


def test_a_guess_is_a_name_and_no_page(server_context: ServerContext) -> None:
    answer = reply(SearchDocs(query="teapot carousel of the fused memory threads"), server_context)
    assert answer.confidence == "low"
    shown = json.dumps(render(answer, detailed=False)["hits"])
    assert len(shown) < 500
    assert all(set(hit) == {"id", "symbol"} for hit in answer.hits)
    assert answer.next_steps[0].arguments == {"id": answer.hits[0]["id"]}


def test_advice_on_a_cpp_error_has_no_word_about_gpus(tmp_path: Path) -> None:
    config = configure({"workspace": str(tmp_path), "cache_dir": str(tmp_path / "cache")})
    queries = ["C++ identifier kHidden was not declared in this scope", "C++ cannot convert half to float"]
    assert any("__CUDA_ARCH__" in line for line in advice(config, queries))
    (line, *_) = advice(config, queries, cpu=True)
    assert "misspelled" in line
    for line in advice(config, queries, cpu=True):
        assert not [word for word in GPU_WORDS if word in line.lower()], line


def test_warnings_about_system_headers_are_left_out() -> None:
    rows = [
        Diagnostic(severity="warning", message="theirs", file="/usr/include/c++/12/bits/x.h", line=1),
        Diagnostic(severity="warning", message="own", file="program.cpp", line=2),
        Diagnostic(severity="error", message="theirs, by our doing", file="/usr/include/c++/12/y.h", line=3),
    ]
    build = Build(program_id="a", ok=False, toolchain="cpp", compiler="g++", diagnostics=tuple(rows))
    assert [row.message for row in gravest(build)] == ["theirs, by our doing", "own"]


def test_evidence_is_shown_as_tables_and_stays_whole_on_demand() -> None:
    output = OutputError(output="0", max_error=1e-6, rms_error=1e-7, reference_error=1e-6, bound=2e-5)
    draws = tuple(DrawResult(draw=f"own-{n}", ok=True, outputs=(output,)) for n in range(20))
    check = Check(program_id="a" * 64, task_id="b" * 64, status="accepted", draws=draws)
    fact = Artifact("fact", check.model_dump_json(indent=1))
    table = summarized(fact).text or ""
    assert len(table) < len(fact.text or "") / 3
    assert table.count("own-") == 20
    assert "status: accepted" in table
    other = Artifact("fact", '{"none": "of these"}')
    assert summarized(other) == other
