"""What a task file says is checked key by key, applies to what it describes, and loosens nothing silently."""

import contextlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.errors import StitchError, TaskError, UsageError
from stitch_tools.models.task import Contract
from stitch_tools.storage.store import Store
from stitch_tools.task.references import render_task_toml
from stitch_tools.task.task_file import CONTRACT_KEYS, TASK_KEYS, contract_values, read_task_file
from tests.tools.task_support import MODEL, load, write

REPOSITORY = Path(__file__).resolve().parents[3]
OBJECTS = """\
class Block: ...
def rope(x): ...
def sample(): ...
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


class TestTaskFile:
    """`task.toml`, beside the reference or named itself."""

    def test_a_contract_beside_the_reference_is_found_and_named_as_source(
        self, tmp_path: Path, store: Store
    ) -> None:
        toml = 'name = "n"\n[contract]\nmode = "eval"\nrtol = 1e-4\n'
        write(tmp_path, {"net.py": MODEL, "net.task.toml": toml})
        task = load(tmp_path, "net.py", store)
        assert (task.name, task.contract.mode, task.contract.tolerance.rtol) == ("n", "eval", 1e-4)
        assert task.contract.sources == {"mode": "task.toml", "rtol": "task.toml"}
        assert not task.contract.relaxed
        assert load(tmp_path, "net.task.toml", store).task_id == task.task_id

    def test_a_folder_stands_for_its_task_toml(self, tmp_path: Path, store: Store) -> None:
        write(tmp_path / "task", {"src/net.py": MODEL, "task.toml": 'reference = "src/net.py"\n'})
        assert load(tmp_path, "task", store).main == "net.py"

    def test_a_task_toml_may_name_an_object_and_makers(self, tmp_path: Path, store: Store) -> None:
        toml = 'reference = "net.py:Net"\ninputs = "make"\ninit_inputs = "sizes"\n'
        text = "class Net: ...\ndef make(): ...\ndef sizes(): ...\n"
        write(tmp_path, {"net.py": text, "task.toml": toml})
        task = load(tmp_path, "task.toml", store)
        assert (task.entry, task.inputs, task.init_inputs) == ("Net", "make", "sizes")
        assert load(tmp_path, "task.toml", store, inputs="sizes").inputs == "sizes"
        write(tmp_path, {"net.task.toml": 'entry = "Net"\ninputs = "make"\ninit_inputs = "sizes"\n'})
        assert load(tmp_path, "net.py", store) == task.model_copy(update={"name": "net"})

    @pytest.mark.parametrize("line", ['reference = "fn.py:rope"', 'entry = "rope"'])
    def test_an_entry_in_the_reference_s_name_is_the_same_as_one_by_itself(
        self, tmp_path: Path, store: Store, line: str
    ) -> None:
        write(tmp_path, {"fn.py": OBJECTS, "fn.task.toml": f'{line}\ninputs = "sample"\n'})
        for reference in ("fn.py", "fn.py:rope", "fn.task.toml"):
            task = load(tmp_path, reference, store)
            assert (task.entry, task.inputs) == ("rope", "sample")

    def test_a_file_written_for_an_object_works_beside_its_reference(
        self, tmp_path: Path, store: Store
    ) -> None:
        write(tmp_path, {"fn.py": OBJECTS})
        before = load(tmp_path, "fn.py:rope", store, inputs="sample")
        text = render_task_toml("fn.py:rope", workspace=tmp_path, inputs="sample")
        write(tmp_path, {"fn.task.toml": text})
        assert load(tmp_path, "fn.py", store) == before

    @pytest.mark.parametrize("reference", ["fn.py:Block", "fn.task.toml:Block"])
    def test_another_object_is_not_given_the_contract_of_the_one_that_is_described(
        self, tmp_path: Path, store: Store, reference: str
    ) -> None:
        toml = 'entry = "rope"\ninputs = "sample"\n[contract]\nrtol = 1e-2\n'
        write(tmp_path, {"fn.py": OBJECTS, "fn.task.toml": toml})
        with pytest.raises(TaskError, match=r"describes fn\.py:rope, and Block is asked for") as caught:
            load(tmp_path, reference, store, allow_relaxed=True)
        assert 'reference = "fn.py:Block"' in caught.value.hint
        text = render_task_toml("fn.py:Block", workspace=tmp_path, inputs="sample")
        write(tmp_path, {"block.task.toml": text})
        task = load(tmp_path, "block.task.toml", store)
        assert (task.entry, task.contract) == ("Block", Contract())

    def test_a_contract_of_another_file_is_not_applied(self, tmp_path: Path, store: Store) -> None:
        toml = 'reference = "other.py"\n[contract]\natol = 1e-2\n'
        write(tmp_path, {"fn.py": MODEL, "other.py": MODEL, "fn.task.toml": toml})
        with pytest.raises(TaskError, match=r"lies beside fn\.py and describes .*other\.py"):
            load(tmp_path, "fn.py", store, allow_relaxed=True)

    def test_a_task_file_without_an_entry_holds_for_each_object(self, tmp_path: Path, store: Store) -> None:
        write(tmp_path, {"fn.py": OBJECTS, "fn.task.toml": 'inputs = "sample"\n[contract]\nrtol = 1e-5\n'})
        assert load(tmp_path, "fn.py:Block", store).contract.tolerance.rtol == 1e-5

    def test_two_entries_in_one_task_file_are_refused(self, tmp_path: Path, store: Store) -> None:
        toml = 'reference = "fn.py:rope"\nentry = "Block"\ninputs = "sample"\n'
        write(tmp_path, {"fn.py": OBJECTS, "fn.task.toml": toml})
        with pytest.raises(TaskError, match="names two entries: rope in reference, and Block in entry"):
            load(tmp_path, "fn.task.toml", store)

    def test_files_and_search_path_are_taken_relative_to_the_task_file(
        self, tmp_path: Path, store: Store
    ) -> None:
        toml = 'reference = "net.py"\nfiles = ["data/w.bin"]\nsearch_path = ["lib"]\n'
        write(tmp_path, {"net.py": MODEL, "task.toml": toml, "data/w.bin": "abc", "lib/x.py": ""})
        task = load(tmp_path, "task.toml", store)
        assert [file.path for file in task.files] == ["data/w.bin", "net.py"]
        assert task.search_path == (str(tmp_path / "lib"),)

    @pytest.mark.parametrize(
        "line", ['files = ["none.bin"]', 'search_path = ["none"]', 'files = ["../other.py"]', "files = 3"]
    )
    def test_files_that_cannot_be_taken_are_refused(self, tmp_path: Path, store: Store, line: str) -> None:
        write(tmp_path, {"in/net.py": MODEL, "in/net.task.toml": line + "\n", "other.py": ""})
        with pytest.raises(TaskError):
            load(tmp_path, "in/net.py", store)

    @pytest.mark.parametrize(
        ("text", "message", "hint"),
        [
            ("refernce = 'net.py'", "unknown key `refernce`", "did you mean `reference`?"),
            ("[contract]\ntolerance = 1", "unknown key `tolerance`", "rtol"),
            ("mode = 'eval'", "`mode` belongs under [contract]", "[contract]"),
            ("[contract]\nr_tol = 1", "unknown key `r_tol`", "did you mean `rtol`?"),
            ("[contract]\nmode = 'training'", "mode = 'training'", "train, eval"),
            ("[contract]\nrtol = '1e-3'", "not a finite number", ""),
            ("[contract]\nrtol = true", "not a finite number", ""),
            ("[contract]\nrtol = nan", "not a finite number", ""),
            ("[contract]\natol = -1", "negative", ""),
            ("[contract]\npytorch_share = 10", "above 1", "10 percent"),
            ("contract = 3", "must be a table", "[contract]"),
            ("name = ''", "not a text", ""),
            ("name = ", "not valid TOML", ""),
        ],
    )
    def test_a_wrong_key_or_value_is_named(
        self, tmp_path: Path, store: Store, text: str, message: str, hint: str
    ) -> None:
        write(tmp_path, {"net.py": MODEL, "net.task.toml": text + "\n"})
        with pytest.raises(TaskError) as caught:
            load(tmp_path, "net.py", store)
        assert message in caught.value.message
        assert hint in caught.value.hint

    def test_the_written_file_loads_to_the_same_task(self, tmp_path: Path, store: Store) -> None:
        write(tmp_path, {"ne t.py": MODEL + "\ndef get_init_inputs():\n    return []\n"})
        before = load(tmp_path, "ne t.py", store)
        write(tmp_path, {"ne t.task.toml": render_task_toml("ne t.py", workspace=tmp_path)})
        assert load(tmp_path, "ne t.py", store) == before

    def test_a_file_written_elsewhere_points_back_to_the_reference(
        self, tmp_path: Path, store: Store
    ) -> None:
        write(tmp_path, {"src/net.py": MODEL})
        folder = tmp_path / "tasks"
        text = render_task_toml("src/net.py:Model", workspace=tmp_path, folder=folder)
        write(folder, {"mine.toml": text})
        assert 'reference = "../src/net.py:Model"' in text
        assert load(tmp_path, "tasks/mine.toml", store) == load(tmp_path, "src/net.py:Model", store)

    def test_the_written_file_shows_every_key_and_its_lines_are_valid(self, tmp_path: Path) -> None:
        write(tmp_path, {"net.py": MODEL, "part.py": ""})
        text = render_task_toml("net.py", workspace=tmp_path)
        optional = {"contract", "init_inputs"}
        for key in [*(set(TASK_KEYS) - optional), *(row.name for row in CONTRACT_KEYS)]:
            assert f"{key} = " in text
        for bound in ("input_low", "input_high"):
            assert re.search(rf"(?m)^# {bound} = .*: no bound unless set$", text)
        path = tmp_path / "check.toml"
        path.write_text(re.sub(r"(?m)^# (?=\w+ = )", "", text), encoding="utf-8")
        assert set(read_task_file(path).contract or {}) == {row.name for row in CONTRACT_KEYS}


class TestLoosening:
    """Tightening is free; asking for less is open and marked, or refused."""

    LOOSER = (
        ("rtol", 1e-2),
        ("atol", 1e-3),
        ("matmul_precision", "tf32"),
        ("conv_precision", "bf16"),
        ("shape_policy", "fixed"),
        ("input_writes", "ignored"),
        ("pytorch_share", 0.5),
    )
    TIGHTER = (
        ("rtol", 1e-5),
        ("atol", 0.0),
        ("pytorch_share", 0.0),
        ("variants", [3, "get_small_inputs"]),
        ("buffers", "const"),
        ("buffers", "updated"),
        ("input_structure", "ignored"),
    )
    STATEMENTS = (("mode", "eval"), ("input_low", 0.0), ("input_high", 1.0))

    @pytest.mark.parametrize(("key", "value"), LOOSER)
    @pytest.mark.parametrize("source", ["caller", "task.toml"])
    def test_a_loosening_is_refused_unless_allowed_and_then_marked(
        self, tmp_path: Path, store: Store, key: str, value: object, source: str
    ) -> None:
        write(tmp_path, {"net.py": MODEL})
        overrides = {key: value} if source == "caller" else {}
        if source == "task.toml":
            write(tmp_path, {"net.task.toml": f"[contract]\n{key} = {value!r}\n"})
        with pytest.raises(UsageError) as caught:
            load(tmp_path, "net.py", store, overrides=overrides)
        assert key in caught.value.message
        assert "--allow-relaxed" in caught.value.hint
        contract = load(tmp_path, "net.py", store, overrides=overrides, allow_relaxed=True).contract
        assert contract.relaxed
        assert contract.sources == {key: source}

    @pytest.mark.parametrize(("key", "value"), TIGHTER)
    def test_a_tightening_is_free(self, tmp_path: Path, store: Store, key: str, value: object) -> None:
        write(tmp_path, {"net.py": MODEL})
        contract = load(tmp_path, "net.py", store, overrides={key: value}).contract
        assert not contract.relaxed
        assert contract.sources == {key: "caller"}

    @pytest.mark.parametrize("target", ["cuda", "cuda:sm_90"])
    def test_on_a_gpu_convolutions_are_those_of_eager_pytorch(
        self, tmp_path: Path, store: Store, target: str
    ) -> None:
        write(tmp_path, {"net.py": MODEL})
        contract = load(tmp_path, "net.py", store, target=target).contract
        assert (contract.conv_precision, contract.matmul_precision) == ("tf32", "fp32")
        assert not contract.relaxed
        assert not contract.sources
        strict = load(tmp_path, "net.py", store, target=target, overrides={"conv_precision": "fp32"}).contract
        assert (strict.conv_precision, strict.relaxed) == ("fp32", False)
        assert strict.sources == {"conv_precision": "caller"}
        with pytest.raises(UsageError):
            load(tmp_path, "net.py", store, target=target, overrides={"conv_precision": "fp16"})

    @pytest.mark.parametrize(("key", "value"), STATEMENTS)
    def test_only_the_task_file_may_say_freely_what_is_computed(
        self, tmp_path: Path, store: Store, key: str, value: object
    ) -> None:
        write(tmp_path, {"net.py": MODEL})
        with pytest.raises(UsageError, match=f"would be loosened: {key}"):
            load(tmp_path, "net.py", store, overrides={key: value})
        contract = load(tmp_path, "net.py", store, overrides={key: value}, allow_relaxed=True).contract
        assert (contract.relaxed, contract.sources) == (True, {key: "caller"})
        write(tmp_path, {"net.task.toml": f"[contract]\n{key} = {value!r}\n"})
        contract = load(tmp_path, "net.py", store).contract
        assert (contract.relaxed, contract.sources) == (False, {key: "task.toml"})

    def test_every_key_of_the_contract_is_named_in_these_tests(self) -> None:
        named = {key for key, _ in (*self.LOOSER, *self.TIGHTER, *self.STATEMENTS)}
        assert named == {row.name for row in CONTRACT_KEYS}

    @pytest.mark.parametrize(
        ("said", "asked"),
        [
            ("rtol = 1e-5", {"rtol": 1e-4}),
            ("mode = 'eval'", {"mode": "train"}),
            ("buffers = 'updated'", {"buffers": "ignored"}),
            ("buffers = 'updated'", {"buffers": "const"}),
            ("variants = [3, 5]", {"variants": [3]}),
            ("input_low = 0", {"input_low": 0.5}),
        ],
    )
    def test_a_caller_cannot_silently_ask_for_less_than_the_task_says(
        self, tmp_path: Path, store: Store, said: str, asked: dict[str, object]
    ) -> None:
        write(tmp_path, {"net.py": MODEL, "net.task.toml": f"[contract]\n{said}\n"})
        with pytest.raises(UsageError, match="would be loosened"):
            load(tmp_path, "net.py", store, overrides=asked)

    def test_a_caller_that_repeats_the_task_changes_nothing(self, tmp_path: Path, store: Store) -> None:
        write(tmp_path, {"net.py": MODEL, "net.task.toml": "[contract]\nmode = 'eval'\n"})
        plain = load(tmp_path, "net.py", store)
        assert load(tmp_path, "net.py", store, overrides={"mode": "eval"}) == plain

    def test_an_unknown_override_is_a_usage_error(self, tmp_path: Path, store: Store) -> None:
        write(tmp_path, {"net.py": MODEL})
        with pytest.raises(UsageError, match="unknown key `modes`") as caught:
            load(tmp_path, "net.py", store, overrides={"modes": "eval"})
        assert not isinstance(caught.value, TaskError)
        with pytest.raises(UsageError, match="above input_high"):
            load(tmp_path, "net.py", store, overrides={"input_low": 2, "input_high": 1}, allow_relaxed=True)

    @given(
        st.dictionaries(
            st.sampled_from([row.name for row in CONTRACT_KEYS]) | st.text(max_size=5),
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("eval"),
        )
    )
    def test_any_override_is_taken_or_refused_with_our_own_error(self, values: dict[str, object]) -> None:
        with contextlib.suppress(StitchError):
            assert set(contract_values(values, "overrides")) <= {row.name for row in CONTRACT_KEYS}


def test_every_example_loads_with_its_contract_and_without_relaxation(tmp_path: Path, store: Store) -> None:
    paths = sorted((REPOSITORY / "examples").glob("*.py"))
    assert len(paths) >= 12
    for path in paths:
        task = load(REPOSITORY, f"examples/{path.name}", store)
        assert path.with_suffix(".task.toml").is_file(), path.name
        assert not task.contract.relaxed


def test_the_packaged_example_is_the_one_of_the_repository() -> None:
    for name in ("mlp.py", "mlp.task.toml"):
        packaged = REPOSITORY / "stitch_mcp" / "examples" / name
        assert packaged.read_bytes() == (REPOSITORY / "examples" / name).read_bytes()


class TestDocumentation:
    """docs/task-file.md is what the code does."""

    TEXT = (REPOSITORY / "docs" / "task-file.md").read_text(encoding="utf-8")

    def test_the_example_uses_every_key_and_loads(self, tmp_path: Path, store: Store) -> None:
        example = self.TEXT.split("```toml\n")[1].split("```")[0]
        source = "class Net: ...\ndef make_inputs(): ...\ndef sizes(): ...\n"
        write(tmp_path, {"net.py": source, "net.task.toml": example, "vocabulary.txt": "a", "lib/x.py": ""})
        for key in [*TASK_KEYS, *(row.name for row in CONTRACT_KEYS)]:
            assert re.search(rf"(?m)^\[?{key}\b", example), key
        task = load(tmp_path, "net.py", store)
        assert (task.entry, task.name, task.inputs, task.init_inputs) == (
            "Net",
            "small-net",
            "make_inputs",
            "sizes",
        )
        assert not task.contract.relaxed

    def test_the_table_names_every_contract_key_with_its_default(self) -> None:
        default = Contract()
        shown = {"rtol": "1e-3", "atol": "1e-5", "pytorch_share": "0.10"}
        shown |= {"input_low": "none", "input_high": "none", "variants": "none"}
        assert (default.tolerance.rtol, default.tolerance.atol) == (1e-3, 1e-5)
        for row in CONTRACT_KEYS:
            rows = [line for line in self.TEXT.splitlines() if line.startswith("|")]
            line = next(line for line in rows if f"`{row.name}`" in line)
            assert shown.get(row.name, f"`{getattr(default, row.name, '')}`") in line
            assert all(f"`{choice}`" in self.TEXT for choice in row.choices)


@pytest.mark.parametrize("name", ["task.toml", "net.task.toml"])
def test_a_task_file_that_is_nested_too_deeply_or_a_pipe_is_refused(
    tmp_path: Path, store: Store, name: str
) -> None:
    write(tmp_path, {"net.py": MODEL, name: f"x={'[' * 20000}"})
    with pytest.raises(TaskError, match="nested too deeply"):
        load(tmp_path, name, store)
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(TaskError, match="no regular file"):
        load(tmp_path, "pipe.toml", store)
