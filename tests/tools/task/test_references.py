"""Loading a task is static: nothing of the user's runs, and what is wrong is said with its place."""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_tools.errors import TaskError, UsageError
from stitch_tools.models.task import Contract
from stitch_tools.storage.store import Store
from stitch_tools.task.python_source import read_python
from stitch_tools.task.references import load_task
from tests.tools.task_support import MODEL, load, write


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


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
