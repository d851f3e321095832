"""A built native program through ctypes, and as a torch module."""

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from stitch_tools.models.program import Build
from stitch_tools.storage.store import Store
from stitch_tools.worker.program_module import StitchModule
from stitch_tools.worker.runtime.native import NativeProgram, ProgramError, make_workspace
from tests.tools.check_support import build, faulty_program, make_program

WEIGHTS = {"fc.weight": torch.randn(33, 16), "fc.bias": torch.randn(33)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("candidate") / "store")


def library(store: Store, fault: str = "NONE") -> str:
    built: Build = build(faulty_program(store, fault), store)
    assert built.artifact is not None, built.diagnostics
    return built.artifact


def truth(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(x, WEIGHTS["fc.weight"], WEIGHTS["fc.bias"]))


def call(program: NativeProgram, x: torch.Tensor) -> torch.Tensor:
    planned = program.plan([x])
    outputs = [torch.full(shape, float("nan"), dtype=dtype) for shape, dtype in planned.outputs]
    workspace = make_workspace(planned.workspace_bytes)
    program.call(program.prepare([x], outputs, workspace=workspace))
    return outputs[0]


def test_a_program_computes_with_the_strides_and_offsets_it_is_given(store: Store) -> None:
    program = NativeProgram(library(store))
    program.init(list(WEIGHTS.items()))
    base = torch.randn(20, 40)
    for x in (torch.randn(5, 16), base[3:9, 7:23], torch.randn(16, 4).t(), torch.randn(1, 16).expand(3, 16)):
        assert torch.allclose(call(program, x), truth(x), atol=1e-4)
    assert call(program, torch.randn(0, 16)).shape == (0, 33)
    program.close()


def test_several_handles_coexist_and_init_replaces_the_weights(store: Store) -> None:
    one, two = NativeProgram(library(store)), NativeProgram(library(store))
    zero = [("fc.weight", torch.zeros(33, 16)), ("fc.bias", torch.ones(33))]
    one.init(list(WEIGHTS.items()))
    two.init(zero)
    x = torch.randn(2, 16)
    assert torch.equal(call(two, x), torch.ones(2, 33))
    assert torch.allclose(call(one, x), truth(x), atol=1e-4)
    one.init(zero)
    assert torch.equal(call(one, x), torch.ones(2, 33))


def test_a_prepared_call_can_be_repeated(store: Store) -> None:
    program = NativeProgram(library(store))
    program.init(list(WEIGHTS.items()))
    x, y = torch.randn(4, 16), torch.empty(4, 33)
    prepared = program.prepare([x], [y], workspace=make_workspace(program.plan([x]).workspace_bytes))
    program.call(prepared)
    x.mul_(2)
    program.call(prepared)
    assert torch.allclose(y, truth(x), atol=1e-4)


def test_refusals_carry_status_step_and_the_program_s_own_words(store: Store) -> None:
    program = NativeProgram(library(store))
    with pytest.raises(ProgramError, match="parameters are missing") as caught:
        program.init([])
    assert (caught.value.status, caught.value.step) == ("error", "stitch_init")
    program.init(list(WEIGHTS.items()))
    with pytest.raises(ProgramError, match="one matrix is wanted") as caught:
        program.plan([torch.randn(4, 17)])
    assert caught.value.status == "unsupported"


def test_what_is_no_program_of_ours_is_not_loadable(store: Store, tmp_path: Path) -> None:
    (tmp_path / "noise.so").write_bytes(b"not a library")
    with pytest.raises(ProgramError) as caught:
        NativeProgram(str(tmp_path / "noise.so"))
    assert caught.value.status == "not_loadable"
    source = b'extern "C" __attribute__((visibility("default"))) int stitch_abi_version() { return 1; }\n'
    built = build(make_program(store, {"half.cpp": source}, "half.cpp"), store)
    if built.artifact is not None:  # the build may refuse it already
        with pytest.raises(ProgramError, match="stitch_init"):
            NativeProgram(built.artifact)
    with pytest.raises(ProgramError) as caught:
        NativeProgram(library(store), ["/nowhere/libmissing.so"])
    assert caught.value.status == "missing_library"


def module(store: Store, structure: object = "leaf", program: NativeProgram | None = None) -> StitchModule:
    return StitchModule(
        library(store),
        WEIGHTS,
        output_structure=json.dumps(structure),
        load=NativeProgram if program is None else lambda *_: program,
    )


def test_a_module_returns_the_reference_s_outputs_in_its_structure(store: Store) -> None:
    x = torch.randn(5, 16)
    assert torch.allclose(module(store)(x), truth(x), atol=1e-4)
    nested = module(store, ["tuple", {"dict": {"y": "leaf", "aux": ["none"]}}])(x)
    assert isinstance(nested, tuple)
    assert nested[0]["aux"] is None
    assert torch.allclose(nested[0]["y"], truth(x), atol=1e-4)


def test_a_module_says_clearly_that_it_has_no_gradients(store: Store) -> None:
    x = torch.randn(5, 16, requires_grad=True)
    with pytest.raises(RuntimeError, match="no gradients"):
        module(store)(x)
    with torch.no_grad():
        assert module(store)(x).shape == (5, 33)


def test_a_module_keeps_the_reference_s_names_and_takes_other_weights(store: Store) -> None:
    compiled = module(store)
    state = compiled.state_dict()
    assert set(state) == set(WEIGHTS)
    compiled.load_state_dict({"fc.weight": torch.zeros(33, 16), "fc.bias": torch.ones(33)})
    assert torch.equal(compiled(torch.randn(2, 16)), torch.ones(2, 33))
    outer = torch.nn.Sequential(compiled)
    assert set(outer.state_dict()) == {"0.fc.weight", "0.fc.bias"}


def by_hand(compiled: StitchModule, x: torch.Tensor) -> torch.Tensor:
    state = compiled.state_dict()
    return torch.relu(torch.nn.functional.linear(x, state["fc.weight"], state["fc.bias"]))


def test_a_call_uses_weights_that_were_written_to_or_exchanged_before_it(store: Store) -> None:
    compiled, x = module(store), torch.randn(5, 16)
    weight = compiled.get_buffer("fc.weight")
    before = compiled(x)
    for change in (
        lambda: weight.mul_(2),
        lambda: compiled.get_buffer("fc.bias").add_(1),
        lambda: setattr(weight, "data", torch.randn(33, 16)),
        lambda: setattr(compiled.get_submodule("fc"), "weight", torch.randn(33, 16)),
        lambda: compiled.share_memory(),
    ):
        change()
        assert torch.allclose(compiled(x), by_hand(compiled, x), atol=1e-4)
    assert not torch.allclose(compiled(x), before, atol=1e-4)


def test_weights_handed_over_in_inference_mode_may_be_written_to_there(store: Store) -> None:
    with torch.inference_mode():
        compiled, x = module(store), torch.randn(5, 16)
        compiled.get_buffer("fc.weight").mul_(2)
        assert torch.allclose(compiled(x), by_hand(compiled, x), atol=1e-4)
        compiled.get_submodule("fc").weight = torch.randn(33, 16)
        assert torch.allclose(compiled(x), by_hand(compiled, x), atol=1e-4)
        compiled.get_buffer("fc.weight").mul_(2)
        assert torch.allclose(compiled(x), by_hand(compiled, x), atol=1e-4)


def test_buffers_and_messages_speak_of_the_reference_s_names(store: Store) -> None:
    compiled = module(store)
    assert {name for name, _ in compiled.named_buffers()} == set(WEIGHTS)
    with pytest.raises(RuntimeError, match=r"size mismatch for fc\.weight"):
        compiled.load_state_dict({**WEIGHTS, "fc.weight": torch.zeros(3, 16)})
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "fc\.bias"'):
        compiled.load_state_dict({"fc.weight": WEIGHTS["fc.weight"]})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (torch.randn(3, 16), r"fc\.weight is float32\[3, 16\] on cpu; .* made for float32\[33, 16\] on cpu"),
        (torch.randn(33, 16).double(), r"fc\.weight is float64\[33, 16\] on cpu"),
        (torch.empty(33, 16, device="meta"), r"fc\.weight is float32\[33, 16\] on meta"),
        (None, r"fc\.weight is missing: the program was made for float32\[33, 16\]"),
    ],
)
def test_a_weight_of_another_form_is_refused(store: Store, wrong: torch.Tensor | None, words: str) -> None:
    compiled = module(store)
    compiled.get_submodule("fc")._buffers["weight"] = wrong
    for _ in range(2):  # not only the first call
        with pytest.raises(RuntimeError, match=words):
            compiled(torch.randn(5, 16))


def test_conversions_that_a_program_cannot_follow_are_refused(store: Store) -> None:
    compiled, x = module(store), torch.randn(5, 16)
    before = compiled(x)
    for convert, given in (
        (lambda: compiled.half(), "float16 on cpu"),
        (lambda: compiled.double(), "float64 on cpu"),
        (lambda: compiled.to("meta"), "float32 on meta"),
        (lambda: torch.nn.Sequential(compiled).to(torch.bfloat16), "bfloat16 on cpu"),
    ):
        with pytest.raises(RuntimeError, match=f"program for float32 on cpu: .* converted to {given}"):
            convert()
    assert torch.equal(compiled.to("cpu").float()(x), before)


def test_a_program_without_weights_refuses_conversions_by_its_inputs(store: Store) -> None:
    compiled = module(store)
    specs = [("x", (5, 16), "float64")]
    bare = StitchModule.__new__(StitchModule)
    bare.__dict__.update({**compiled.__dict__, "_places": {}, "_input_specs": specs, "_modules": {}})
    bare.double()
    with pytest.raises(RuntimeError, match="program for float64 on cpu"):
        bare.half()


def test_a_deep_copy_has_weights_and_a_program_of_its_own(store: Store) -> None:
    compiled, x = module(store), torch.randn(5, 16)
    before = compiled(x)
    copied = copy.deepcopy(compiled)
    copied.get_buffer("fc.weight").zero_()
    assert torch.allclose(copied(x), by_hand(copied, x), atol=1e-4)
    assert torch.equal(compiled(x), before)
    assert not torch.equal(copied(x), before)


class Watched(NativeProgram):
    """Counts its initialisations; `before` and `after` come with each."""

    before: Callable[[], object] = int
    after: Callable[[], object] = int
    count = 0

    def init(
        self,
        parameters: Sequence[tuple[str, torch.Tensor]],
        *,
        device: torch.device | str = "cpu",
        stream: int = 0,
        threads: int = 0,
    ) -> None:
        self.count += 1
        self.before()
        super().init(parameters, device=device, stream=stream, threads=threads)
        self.after()


def test_a_write_while_the_program_takes_its_weights_is_seen_by_the_next_call(store: Store) -> None:
    watched, x = Watched(library(store)), torch.randn(5, 16)
    compiled = module(store, program=watched)
    writes = iter([lambda: compiled.get_buffer("fc.weight").mul_(2)])
    watched.close()
    watched.count, watched.after = 0, lambda: next(writes, int)()
    compiled(x)
    assert torch.allclose(compiled(x), by_hand(compiled, x), atol=1e-4)
    compiled(x)
    assert watched.count == 2


def test_threads_that_call_a_program_without_weights_give_it_them_once(store: Store) -> None:
    both = threading.Barrier(2)

    def wait_for_another() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1.0)

    watched, x = Watched(library(store)), torch.randn(5, 16)
    compiled = module(store, program=watched)
    watched.close()
    watched.count, watched.before = 0, wait_for_another
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(compiled, [x, 2 * x]))
    assert watched.count == 1
    for given, y in zip((x, 2 * x), found, strict=True):
        assert torch.allclose(y, truth(given), atol=1e-4)


@pytest.mark.parametrize("inference", [False, True])
def test_weights_that_are_tied_in_the_reference_stay_tied(store: Store, inference: bool) -> None:
    weight = torch.randint(-8, 9, (33, 16)).float()  # sums are exact
    given = {"embedding": weight, "fc.weight": weight.detach(), "fc.bias": torch.zeros(33), "top": weight[:4]}
    x = torch.randn(5, 16)
    with torch.inference_mode(inference):
        compiled = StitchModule(library(store), given, output_structure='"leaf"')
        assert set(compiled.state_dict()) == set(given)
        compiled.get_buffer("embedding").mul_(2)
        compiled.get_buffer("top").zero_()
    assert torch.equal(weight, given["fc.weight"]), "the caller's own weights stay as they are"
    expected = torch.cat([torch.zeros(4, 16), 2 * weight[4:]])
    for one in (compiled, copy.deepcopy(compiled), compiled.cpu()):
        assert torch.equal(one.get_buffer("fc.weight"), expected)
        one.get_buffer("embedding").add_(1)
        assert torch.equal(one.get_buffer("fc.weight"), expected + 1)
        assert torch.allclose(one(x), by_hand(one, x), atol=1e-4)
        one.get_buffer("fc.weight").sub_(1)


def test_a_module_refuses_shapes_that_the_program_was_not_made_for(store: Store) -> None:
    with pytest.raises(ProgramError, match="one matrix is wanted"):
        module(store)(torch.randn(4, 17))


def test_a_refusal_names_the_shapes_and_types_that_were_expected_and_given(store: Store) -> None:
    specs = [("x", (5, 16), "float32")]
    compiled = StitchModule(
        library(store), WEIGHTS, output_structure='"leaf"', input_specs=specs, name="linear_relu"
    )
    assert repr(compiled).startswith("StitchModule(linear_relu, device=cpu, inputs=(")
    with pytest.raises(ProgramError, match=r"input x: made for float32\[5, 16\], given float32\[4, 17\]"):
        compiled(torch.randn(4, 17))
    with pytest.raises(ProgramError, match=r"made for float32\[5, 16\], given float64\[16\]"):
        compiled(torch.randn(16, dtype=torch.float64))


def bound_module(store: Store, inputs: object, names: tuple[str, ...]) -> StitchModule:
    return StitchModule(
        library(store),
        WEIGHTS,
        output_structure='"leaf"',
        input_structure=json.dumps(inputs),
        input_names=names,
    )


def test_a_module_refuses_another_constant_than_the_one_in_the_program(store: Store) -> None:
    inputs = ["tuple", "leaf", ["constant", "float", "0.5"], {"dict": {"mode": ["constant", "str", "sum"]}}]
    compiled = bound_module(store, inputs, ("x", "scale", "how"))
    x = torch.randn(5, 16)
    assert torch.allclose(compiled(x, 0.5, {"mode": "sum"}), truth(x), atol=1e-4)
    with pytest.raises(ValueError, match=r"argument scale was 0\.5 .*, now it is 0\.25"):
        compiled(x, 0.25, {"mode": "sum"})
    with pytest.raises(ValueError, match=r"argument how\.mode was 'sum' .*, now it is 'mean'"):
        compiled(x, 0.5, {"mode": "mean"})
    with pytest.raises(TypeError, match=r"argument scale .*, now it is a tensor"):
        compiled(x, torch.tensor(0.5), {"mode": "sum"})
    with pytest.raises(TypeError, match="argument how is missing"):
        compiled(x, 0.5)


def test_a_module_binds_named_arguments_as_the_reference_does(store: Store) -> None:
    x = torch.randn(5, 16)
    constant = ["constant", "int", "2"]
    by_position = bound_module(store, ["tuple", "leaf", constant], ("x", "power", "eps"))
    by_name = bound_module(store, {"dict": {"power": constant, "x": "leaf"}}, ("x", "power", "eps"))
    for compiled in (by_position, by_name):
        for result in (compiled(x, 2), compiled(x, power=2), compiled(power=2, x=x)):
            assert torch.allclose(result, truth(x), atol=1e-4)
        with pytest.raises(ValueError, match="argument power was 2"):
            compiled(x, power=3)
        with pytest.raises(TypeError, match="argument x was given twice"):
            compiled(x, 2, x=x)
        with pytest.raises(TypeError, match="argument eps was not given"):
            compiled(x, 2, 1e-5)
        with pytest.raises(TypeError, match="argument bias was not given"):
            compiled(x, 2, bias=None)


def test_a_module_of_an_old_certificate_refuses_mixed_arguments_only(store: Store) -> None:
    x = torch.randn(5, 16)
    compiled = module(store)
    assert torch.allclose(compiled(x=x), truth(x), atol=1e-4)
    with pytest.raises(TypeError, match="all by position, or all by name"):
        compiled(x, scale=2)
