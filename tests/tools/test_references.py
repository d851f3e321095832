"""Loading a task is static: nothing of the user's runs, and what is wrong is said with its place."""

import contextlib
import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.errors import StitchError, TaskError, UsageError
from stitch_tools.models import Contract, Task
from stitch_tools.python_source import read_python
from stitch_tools.references import load_task, render_task_toml
from stitch_tools.store import Store
from stitch_tools.task_file import CONTRACT_KEYS, TASK_KEYS, contract_values, read_task_file

REPOSITORY = Path(__file__).resolve().parents[2]
MODEL = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    return [torch.ones(2)]
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def load(folder: Path, reference: str, store: Store, **options: object) -> Task:
    return load_task(reference, workspace=folder, store=store, **options)  # pyright: ignore[reportArgumentType]


def test_a_kernelbench_file_becomes_a_task_whose_source_is_in_the_store(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"net.py": MODEL})
    task = load(tmp_path, "net.py", store)
    assert (task.name, task.main, task.entry, task.style) == ("net", "net.py", "Model", "kernelbench")
    assert (task.inputs, task.init_inputs, task.target) == ("get_inputs", None, "cpu")
    assert store.get(task.files[0].sha256).decode() == MODEL
    assert task.contract == Contract()


def test_nothing_of_the_reference_runs(tmp_path: Path, store: Store) -> None:
    marker = tmp_path / "ran"
    text = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nraise SystemExit(3)\n" + MODEL
    write(tmp_path, {"net.py": text})
    load(tmp_path, "net.py", store)
    assert not marker.exists()


def test_equal_sources_give_equal_ids_wherever_they_lie(tmp_path: Path, store: Store) -> None:
    write(tmp_path / "a", {"net.py": MODEL})
    write(tmp_path / "b ö", {"net.py": MODEL})
    first, second = load(tmp_path / "a", "net.py", store), load(tmp_path / "b ö", "net.py", store)
    assert first.task_id == second.task_id
    changed = load(tmp_path / "a", "net.py", store, overrides={"rtol": 1e-5})
    assert changed.task_id != first.task_id


@pytest.mark.parametrize(
    ("entry", "init_inputs"), [("Net", "get_init_inputs"), ("instance", None), ("function", None)]
)
def test_an_object_is_a_class_an_instance_or_a_function(
    tmp_path: Path, store: Store, entry: str, init_inputs: str | None
) -> None:
    text = "class Net: ...\ninstance = Net()\ndef function(x): ...\n"
    text += "def get_init_inputs(): return []\ndef make(): return []\n"
    write(tmp_path, {"net.py": text})
    task = load(tmp_path, f"net.py:{entry}", store, inputs="make")
    assert (task.entry, task.style, task.inputs, task.init_inputs) == (entry, "object", "make", init_inputs)


def test_a_syntax_error_is_shown_with_line_and_text(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"net.py": "import torch\n\nclass Model(:\n    pass\n"})
    with pytest.raises(TaskError) as caught:
        load(tmp_path, "net.py", store)
    message = caught.value.message
    assert "net.py:3: syntax error" in message
    assert "    class Model(:\n                ^" in message


def test_a_syntax_error_in_an_imported_file_names_that_file(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"net.py": "import layers\n" + MODEL, "layers.py": "x = = 1\n"})
    with pytest.raises(TaskError, match=r"layers\.py:1: syntax error"):
        load(tmp_path, "net.py", store)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00bad", b"x = 1\x00\n", b"# coding: nonsense\n"])
def test_a_file_that_is_not_text_is_refused(tmp_path: Path, store: Store, data: bytes) -> None:
    (tmp_path / "net.py").write_bytes(data)
    with pytest.raises(TaskError, match=r"net\.py"):
        load(tmp_path, "net.py", store)


@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_task_error_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "net.py").write_bytes(data)
    with pytest.raises(TaskError):
        load_task("net.py", workspace=folder, store=Store(folder / "store"))


def test_a_missing_entry_names_what_is_there(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"net.py": "class Encoder: ...\ndef helper(): ...\ndef get_inputs(): return []\n"})
    with pytest.raises(TaskError) as caught:
        load(tmp_path, "net.py", store)
    assert "has no `Model` (the entry)" in caught.value.message
    assert "class Encoder, function helper" in caught.value.message
    assert caught.value.hint == "name the object: net.py:Encoder"


def test_the_one_function_that_takes_inputs_is_named_as_the_object(tmp_path: Path, store: Store) -> None:
    text = "def focal(x, y): ...\ndef _helper(x): ...\ndef get_inputs(): return []\n"
    write(tmp_path, {"focal.py": text})
    with pytest.raises(TaskError) as caught:
        load(tmp_path, "focal.py", store)
    assert caught.value.hint == "name the object: focal.py:focal"


def test_the_one_maker_and_the_task_file_beside_it_are_proposed(tmp_path: Path, store: Store) -> None:
    text = MODEL.replace("get_inputs", "sample") + "\ndef get_init_inputs():\n    return []\n"
    write(tmp_path, {"rope.py": text})
    with pytest.raises(TaskError) as caught:
        load(tmp_path, "rope.py:Model", store)
    assert "--inputs sample" in caught.value.hint
    write(tmp_path, {"task.toml": 'reference = "rope.py:Model"\ninputs = "sample"\n'})
    with pytest.raises(TaskError) as caught:
        load(tmp_path, "rope.py:Model", store)
    assert "task.toml" in caught.value.hint
    assert load(tmp_path, "task.toml", store).inputs == "sample"


def test_a_misspelt_input_maker_gets_a_suggestion(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"net.py": MODEL.replace("get_inputs", "get_input")})
    with pytest.raises(TaskError) as caught:
        load(tmp_path, "net.py", store)
    assert caught.value.hint == "did you mean `get_input`?"


def test_an_input_maker_with_arguments_is_refused_with_its_line(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"net.py": MODEL.replace("get_inputs()", "get_inputs(batch, *, width, depth=2)")})
    with pytest.raises(TaskError, match=r"net\.py:9: `get_inputs` needs arguments \(batch, width\)"):
        load(tmp_path, "net.py", store)


def test_names_bound_under_a_condition_or_by_import_count(tmp_path: Path, store: Store) -> None:
    text = "try:\n    from layers import Model\nexcept ImportError:\n    Model = None\n"
    text += "if True:\n    def get_inputs(): return []\n"
    write(tmp_path, {"net.py": text, "layers.py": "class Model: ...\n"})
    assert [file.path for file in load(tmp_path, "net.py", store).files] == ["layers.py", "net.py"]


def test_a_star_import_may_bring_the_entry(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"net.py": "from layers import *\n", "layers.py": MODEL})
    assert len(load(tmp_path, "net.py", store).files) == 2


def test_imported_files_beside_the_reference_belong_to_the_task(tmp_path: Path, store: Store) -> None:
    files = {
        "net.py": "import os.path, torch, blocks.deep.conv\nfrom helpers import norm\n" + MODEL,
        "helpers.py": "def norm():\n    import late\n",
        "late.py": "import net\n",
        "blocks/__init__.py": "from . import shared\n",
        "blocks/shared.py": "",
        "blocks/deep/__init__.py": "",
        "blocks/deep/conv.py": "from ..shared import x\nfrom ...outside import y\n",
        "unused.py": "this is not Python",
    }
    write(tmp_path, files)
    found = [file.path for file in load(tmp_path, "net.py", store).files]
    assert found == sorted(set(files) - {"unused.py"})


def test_a_reference_inside_a_package_keeps_its_place(tmp_path: Path, store: Store) -> None:
    files = {"pkg/__init__.py": "", "pkg/net.py": "from .part import x\n" + MODEL, "pkg/part.py": "x = 1\n"}
    write(tmp_path, files)
    task = load(tmp_path, "pkg/net.py", store)
    assert task.main == "pkg/net.py"
    assert [file.path for file in task.files] == sorted(files)


def test_a_folder_without_a_task_file_and_a_name_of_nothing_are_told_apart(
    tmp_path: Path, store: Store
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(TaskError, match=r"folder holds no task\.toml") as caught:
        load(tmp_path, "folder", store)
    assert "task new" in caught.value.hint
    with pytest.raises(TaskError, match="'nothing' does not exist"):
        load(tmp_path, "nothing", store)


def test_a_missing_file_suggests_the_one_that_is_there(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"network.py": MODEL})
    with pytest.raises(TaskError) as caught:
        load(tmp_path, "netwrk.py", store)
    assert "network.py" in caught.value.hint


@pytest.mark.parametrize("reference", ["net.txt", "folder-without-file", "net"])
def test_what_is_no_reference_is_refused(tmp_path: Path, store: Store, reference: str) -> None:
    with pytest.raises(TaskError):
        load(tmp_path, reference, store)


def test_paths_with_spaces_colons_and_unicode_work(tmp_path: Path, store: Store) -> None:
    write(tmp_path / "a b:c" / "модель", {"ünet 1.py": MODEL})
    task = load(tmp_path, "a b:c/модель/ünet 1.py:Model", store)
    assert (task.main, task.entry, task.name) == ("ünet 1.py", "Model", "ünet-1")


def test_the_target_is_checked(tmp_path: Path, store: Store) -> None:
    write(tmp_path, {"net.py": MODEL})
    assert load(tmp_path, "net.py", store, target="cuda:sm_90").target == "cuda:sm_90"
    with pytest.raises(UsageError, match="unknown target"):
        load(tmp_path, "net.py", store, target="gpu")


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


@pytest.mark.parametrize("codec", ["rot13", "hex"])
def test_a_codec_that_is_no_text_encoding_is_named_with_its_line(
    tmp_path: Path, store: Store, codec: str
) -> None:
    write(tmp_path, {"net.py": f"# a model\n# coding: {codec}\n{MODEL}"})
    with pytest.raises(TaskError, match=rf"net\.py:2: '{codec}' is not a text encoding"):
        load(tmp_path, "net.py", store)


def test_an_import_that_no_file_can_be_named_like_is_no_file_beside_the_reference(
    tmp_path: Path, store: Store
) -> None:
    write(tmp_path, {"net.py": f"import {'a' * 300}\n{MODEL}"})
    assert [file.path for file in load(tmp_path, "net.py", store).files] == ["net.py"]


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


def test_a_reference_that_cannot_be_a_file_is_refused_with_its_reason(tmp_path: Path, store: Store) -> None:
    (tmp_path / "one.py").symlink_to("two.py")
    (tmp_path / "two.py").symlink_to("one.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / os.fsdecode(b"n\xe4\xff.py")).write_text(MODEL, encoding="utf-8")
    for reference, reason in (
        ("one.py", "loop|symbolic links"),
        ("pipe.py", "no regular file"),
        (os.fsdecode(b"n\xe4\xff.py"), "not UTF-8"),
        ("x" * 5000 + ".py", "File name too long"),
        ("~no-such-user/net.py", "home directory"),
        ("net\0.py", "null"),
    ):
        with pytest.raises(TaskError, match=reason) as caught:
            load(tmp_path, reference, store)
        assert caught.value.hint
        assert len(caught.value.message.encode("utf-8")) < 600


def test_a_reference_without_permission_is_not_offered_again(tmp_path: Path) -> None:
    write(tmp_path, {"net.py": MODEL})
    (tmp_path / "net.py").chmod(0)
    with as_nobody(), pytest.raises(TaskError, match="Permission denied") as caught:
        read_python(tmp_path / "net.py")
    assert caught.value.hint == "check its permissions"


@contextlib.contextmanager
def as_nobody() -> Generator[None]:
    """Without root's right to read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)
