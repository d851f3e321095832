"""Local copies of public sets: their columns, refused rows, filters. All rows are our own."""

import importlib
import importlib.util
import json
from pathlib import Path

import pytest

from stitch_mcp.rl.data.public_sets import read_set
from stitch_tools.errors import EnvironmentMissingError, UsageError
from tests.mcp.cli_support import call

GELU_NORM = """import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(torch.nn.functional.gelu(x))


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return [32]
"""
SCALED_SOFTMAX = (
    GELU_NORM.replace("torch.nn.functional.gelu(x)", "torch.softmax(x, dim=-1) * 2.0")
    .replace("class Model", "class ScaledSoftmax")
    .replace("return [32]", "return [[], {'width': 32}]")
    .replace("super().__init__()", "super(ScaledSoftmax, self).__init__()")
)
MODEL = GELU_NORM.replace("[32]", "[[32], {}]")
ENDLESS = MODEL.replace("return self.norm(torch.nn.functional.gelu(x))", "x.sum()\n        while True: pass")
DRAWS = MODEL.replace("gelu(x)", "relu(torch.rand_like(x) + x)")
KERNELBENCH = {"code": GELU_NORM, "level": 2, "name": "7_Gelu_LayerNorm.py", "problem_id": 7}
CUDA_AGENT = {"ops": '["gelu", "LayerNorm", "add"]', "data_source": "torch#3", "code": GELU_NORM}
KERNELBOOK = {
    "entry_point": "ScaledSoftmax",
    "python_code": SCALED_SOFTMAX,
    "original_triton_code": "...",
    "triton_code": "...",
    "repo_name": "someone/norms",
    "module_name": "ScaledSoftmax",
    "synthetic": False,
    "uuid": 3,
    "licenses": ["MIT"],
    "stars": 5,
    "sha": "0" * 40,
    "repo_link": "https://example.com",
}


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_row_of_each_set_becomes_a_candidate_with_level_and_origin(tmp_path: Path) -> None:
    (bench,) = read_set(write(tmp_path / "a.jsonl", KERNELBENCH), "kernelbench")
    assert (bench.name, bench.level) == ("kernelbench-2-7", 2)
    assert bench.operations == ("gelu", "layer_norm")
    assert bench.origin == "KernelBench level 2, 7_Gelu_LayerNorm.py"
    rows = [CUDA_AGENT, {**CUDA_AGENT, "ops": ["gelu"] * 5}]
    path = tmp_path / "b.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    assert [(row.name, row.level) for row in read_set(path, "cuda-agent-ops")] == [
        ("cuda-agent-1", 2),
        ("cuda-agent-2", 3),
    ]
    (book,) = read_set(write(tmp_path / "c.jsonl", KERNELBOOK), "kernelbook")
    assert book.name == "kernelbook-1-ScaledSoftmax"
    assert book.origin == "KernelBook row 1, someone/norms (MIT)"


def test_a_checkout_has_the_rows_of_the_set(tmp_path: Path) -> None:
    folder = tmp_path / "KernelBench" / "level2"
    folder.mkdir(parents=True)
    for name in ("10_b.py", "9_a.py"):
        (folder / name).write_text(GELU_NORM, encoding="utf-8")
    found = [row.origin for row in read_set(tmp_path, "kernelbench")]
    assert found == ["KernelBench level 2, 9_a", "KernelBench level 2, 10_b"]


@pytest.mark.parametrize(
    ("how", "row", "told"),
    [
        ("kernelbench", {key: KERNELBENCH[key] for key in ("code", "name", "problem_id")}, "row 2: level"),
        ("kernelbench", {**KERNELBENCH, "level": "two"}, "row 2: level"),
        ("kernelbook", {"python_code": SCALED_SOFTMAX}, "row 2: entry_point"),
        ("kernelbook", {**KERNELBOOK, "entry_point": "a b"}, "row 2: entry_point: it is no name"),
        ("cuda-agent-ops", {"ops": "[]", "code": GELU_NORM}, "row 2: data_source"),
        ("cuda-agent-ops", [1], "row 2: row"),
    ],
)
def test_a_row_that_misses_a_field_is_refused_with_its_number(
    tmp_path: Path, how: str, row: object, told: str
) -> None:
    first = {"kernelbench": KERNELBENCH, "kernelbook": KERNELBOOK, "cuda-agent-ops": CUDA_AGENT}[how]
    with pytest.raises(UsageError, match=told):
        list(read_set(write(tmp_path / "set.jsonl", first, row), how))  # pyright: ignore[reportArgumentType] # one of the formats


def test_parquet_is_read_where_pyarrow_is_there_and_refused_with_the_extra_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "set.parquet"
    if importlib.util.find_spec("pyarrow") is None:
        path.write_bytes(b"PAR1")
        with pytest.raises(EnvironmentMissingError, match="needs pyarrow"):
            list(read_set(path, "kernelbench"))
        return
    pyarrow = importlib.import_module("pyarrow")
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.Table.from_pylist([KERNELBOOK] * 3), path)
    assert [row.name for row in read_set(path, "kernelbook")][2] == "kernelbook-3-ScaledSoftmax"


def test_a_line_that_is_no_json_is_refused_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", KERNELBENCH)
    path.write_text(path.read_text(encoding="utf-8") + "{torn\n", encoding="utf-8")
    with pytest.raises(UsageError, match="row 2: it is no JSON"):
        list(read_set(path, "kernelbench"))


def test_imported_tasks_pass_the_filters_and_those_near_a_benchmark_are_named(tmp_path: Path) -> None:
    write(
        tmp_path / "book.jsonl",
        KERNELBOOK,
        {**KERNELBOOK, "entry_point": "Model", "python_code": MODEL},
        {**KERNELBOOK, "entry_point": "Model", "python_code": DRAWS},
        {**KERNELBOOK, "entry_point": "Model", "python_code": ENDLESS},
        {**KERNELBOOK, "python_code": "print 'no Python 3'"},
        KERNELBOOK,
    )
    (tmp_path / "known.py").write_text(GELU_NORM, encoding="utf-8")
    given = ("book.jsonl", "--format", "kernelbook", "--away-from", "known.py", "--out", "made")
    code, report = call(tmp_path, "rl", "import", *given)
    assert code == 0, report
    assert report["near_benchmark"] == ["kernelbook-2-Model ~ known.py"]
    assert report["rejected"] == {
        "near_benchmark": 1,
        "not_deterministic": 1,
        "does_not_run": 1,
        "near_duplicate": 1,
        "too_slow": 1,
    }
    assert (report["sampled"], report["accepted"]) == (6, 1)
    code, collected = call(tmp_path, "rl", "collect", "--tasks", "made/tasks.jsonl", "--out", "samples.jsonl")
    assert (code, collected["samples"]) == (0, 1)
    (line,) = (tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["origin"] == "KernelBook row 1, someone/norms (MIT)"
