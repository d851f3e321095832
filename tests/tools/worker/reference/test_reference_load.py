"""A reference that cannot be used gets a plain message with the cause and the line of the user's file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stitch_tools.worker.reference.load_reference import LoadedReference, ReferenceFault, ReferenceSource
from stitch_tools.worker.reference.reference_calls import call_reference

GOOD = """\
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.fc = nn.Linear(size, size)

    def forward(self, x):
        return self.fc(x)

def get_inputs():
    return [torch.rand(2, 4)]

def get_init_inputs():
    return [4]
"""
ENDLESS = "x = []; x.append(x); return x"
DEEP = "y = self.fc(x)\n        for _ in range(2000): y = [y]\n        return y"


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    path, modules, bytecode = list(sys.path), set(sys.modules), sys.dont_write_bytecode
    yield
    sys.path[:] = path
    sys.dont_write_bytecode = bytecode
    for name in set(sys.modules) - modules:
        if "reference" in name or name in ("model", "helper"):
            del sys.modules[name]


def load(folder: Path, source: str, **fields: object) -> LoadedReference:
    (folder / "model.py").write_text(source, encoding="utf-8")
    return LoadedReference(ReferenceSource(str(folder), "model.py", **fields))  # pyright: ignore[reportArgumentType]


def run(reference: LoadedReference, seed: int = 1) -> torch.Tensor:
    module, _ = reference.construct(seed)
    return call_reference(reference, module, reference.make_inputs(2), forward_seed=3).outputs.tensors[0]


def test_equal_seeds_give_equal_weights_and_inputs_and_others_others(tmp_path: Path) -> None:
    reference = load(tmp_path, GOOD)
    assert torch.equal(run(reference), run(reference))
    assert not torch.equal(run(reference, 1), run(reference, 2))


def test_the_folder_of_the_reference_can_be_imported_from(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("SIZE = 4\n", encoding="utf-8")
    reference = load(tmp_path, GOOD.replace("return [4]", "import helper\n    return [helper.SIZE]"))
    assert run(reference).shape == (2, 4)


def test_a_file_named_like_a_loaded_module_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(GOOD, encoding="utf-8")
    reference = LoadedReference(ReferenceSource(str(tmp_path), "torch.py"))
    assert sys.modules["torch"] is torch
    assert run(reference).shape == (2, 4)


def test_a_path_with_spaces_and_unicode_works(tmp_path: Path) -> None:
    folder = tmp_path / "mein Modell ü"
    folder.mkdir()
    assert run(load(folder, GOOD)).shape == (2, 4)


def test_a_function_and_an_instance_are_entries_too(tmp_path: Path) -> None:
    source = "import torch\ndef f(x, y):\n    return x + y\ndef get_inputs():\n    return torch.ones(3), 2\n"
    reference = load(tmp_path, source, entry="f", init_inputs=None)
    assert torch.equal(run(reference), torch.full((3,), 3.0))
    source = GOOD + "\nclass Holder:\n    net = Model(4)\n"
    reference = load(tmp_path, source, entry="Holder.net", init_inputs=None)
    assert not torch.equal(run(reference, 1), run(reference, 2))


@pytest.mark.parametrize(
    ("change", "fields", "kind", "line", "words"),
    [
        (("def forward(self, x):", "def forward(self, x:"), {}, "syntax", 9, "syntax error"),
        (("import torch\n", "import torchh\n"), {}, "missing_import", 1, "torchh"),
        (("class Model(", "1 / 0\nclass Model("), {}, "import", 4, "ZeroDivisionError"),
        (("class Model(", "import sys; sys.exit(3)\nclass Model("), {}, "import", 4, "exit code 3"),
        (("", ""), {"entry": "Net"}, "missing_entry", None, "it defines Model, get_init_inputs, get_inputs"),
        (("", ""), {"inputs": "make"}, "missing_inputs", None, "no 'make'"),
        (("return [4]", "return [4, 5]"), {}, "constructor", None, "positional argument"),
        (("self.fc = nn.Linear", "self.fc = nn.Liner"), {}, "constructor", 7, "Liner"),
        (("return [4]", "return [1 / 0]"), {}, "init_inputs", 16, "division by zero"),
        (("return [torch.rand(2, 4)]", "return [torch.rand(2, -4)]"), {}, "inputs", 13, "negative dimension"),
        (("return [torch.rand(2, 4)]", "return []"), {}, "wrong_inputs", 9, "get_inputs() gave 0 inputs"),
        (("return [torch.rand(2, 4)]", "return [torch.rand(2, 5)]"), {}, "forward", 10, "shapes cannot be"),
        (("return self.fc(x)", "return self"), {}, "output", 9, "output 0 is of type Model"),
        (("return self.fc(x)", "return x.to_sparse()"), {}, "output", 9, "only dense tensors"),
        (("return self.fc(x)", "return x.to('meta')"), {}, "output", 9, "tensors hold no values"),
        (("return self.fc(x)", DEEP), {}, "output", 9, "nested more than 64 deep"),
        (("return self.fc(x)", "raise KeyboardInterrupt"), {}, "forward", 10, "KeyboardInterrupt"),
        (
            ("nn.Linear(size, size)", "nn.LazyLinear(size)"),
            {},
            "constructor",
            5,
            "fc.weight, fc.bias: of no size",
        ),
        (("return [torch.rand(2, 4)]", ENDLESS), {}, "inputs", 12, "get_inputs() gives what no program"),
        (("return [torch.rand(2, 4)]", ENDLESS), {}, "inputs", 12, "or contains itself"),
        (("return [4]", ENDLESS), {}, "init_inputs", 15, "or contains itself"),
        (
            ("torch.rand(2, 4)", "torch.eye(4).to_sparse()"),
            {},
            "inputs",
            12,
            "0 is a torch.sparse_coo tensor",
        ),
        (("torch.rand(2, 4)", "torch.rand(2, 4, device='meta')"), {}, "inputs", 12, "on the device `meta`"),
    ],
)
def test_each_fault_names_its_kind_cause_and_line(
    tmp_path: Path,
    change: tuple[str, str],
    fields: dict[str, object],
    kind: str,
    line: int | None,
    words: str,
) -> None:
    with pytest.raises(ReferenceFault) as caught:
        run(load(tmp_path, GOOD.replace(*change), **fields))
    fault = caught.value
    assert (fault.kind, fault.line) == (kind, line), fault.message
    assert words in fault.message
    if line is not None:
        assert fault.file == "model.py"
        assert fault.source_line


@pytest.mark.parametrize(
    ("signature", "names", "returned"),
    [("size, depth", "size, depth", "[size, depth]"), ("size=4, *, depth", "depth", "dict(depth=...)")],
)
def test_a_class_whose_constructor_needs_arguments_asks_for_their_maker(
    tmp_path: Path, signature: str, names: str, returned: str
) -> None:
    source = GOOD.replace("self, size", f"self, {signature}").partition("def get_init_inputs")[0]
    with pytest.raises(ReferenceFault) as caught:
        run(load(tmp_path, source, init_inputs=None))
    fault = caught.value
    assert fault.message == f"Model() needs arguments ({names})"
    assert (fault.file, fault.line, fault.kind) == ("model.py", 5, "constructor")
    assert fault.hint == f"Define get_init_inputs() returning {returned}."


def test_a_constructor_that_is_inherited_from_torch_is_no_line_of_the_user(tmp_path: Path) -> None:
    source = "from torch import nn\nclass Model(nn.Linear):\n    pass\ndef get_inputs():\n    return []\n"
    with pytest.raises(ReferenceFault) as caught:
        load(tmp_path, source, init_inputs=None).construct(1)
    assert (caught.value.file, caught.value.line) == ("model.py", None)
    assert caught.value.hint == "Define get_init_inputs() returning [in_features, out_features]."


@pytest.mark.parametrize("signature", ["", "x"])
def test_a_function_that_makes_a_module_is_told_what_to_name(tmp_path: Path, signature: str) -> None:
    source = f"{GOOD}\ndef make({signature}):\n    return Model(4)\n"
    with pytest.raises(ReferenceFault) as caught:
        run(load(tmp_path, source, entry="make", init_inputs=None))
    assert caught.value.hint is not None
    assert "name its class (with get_init_inputs) or an instance" in caught.value.hint


def test_a_fault_in_an_imported_file_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def act(x):\n    return x.nope()\n", encoding="utf-8")
    source = GOOD.replace("import torch\n", "import torch, helper\n").replace(
        "return self.fc(x)", "return helper.act(x)"
    )
    with pytest.raises(ReferenceFault) as caught:
        run(load(tmp_path, source))
    assert (caught.value.file, caught.value.line) == ("helper.py", 2)


def test_a_missing_file_and_a_missing_device_say_so(tmp_path: Path) -> None:
    with pytest.raises(ReferenceFault, match=r"no file model\.py"):
        LoadedReference(ReferenceSource(str(tmp_path), "model.py"))
    if not torch.cuda.is_available():
        with pytest.raises(ReferenceFault, match="no CUDA device"):
            load(tmp_path, GOOD, device="cuda")


def test_the_mode_of_the_contract_is_the_module_s(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).construct(1)[0].training
    assert not load(tmp_path, GOOD, mode="eval").construct(1)[0].training
