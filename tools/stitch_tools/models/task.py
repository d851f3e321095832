"""What is to be made faster: the reference, its inputs, and the contract that says what counts as equal."""

import math
from typing import Literal

from pydantic import Field

from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.protocol.memory import ITEM_BYTES

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
FieldSource = Literal["default", "reference", "task.toml", "caller"]
BufferPolicy = Literal["const", "updated", "ignored"]


class Tolerance(Fact):
    """Ceilings of the equality rule, relative to the oracle's rms per output: error <= atol + rtol * rms."""

    rtol: float
    """Relative ceiling, without unit."""
    atol: float
    """Absolute ceiling, in the output's own unit."""


class TensorSpec(Fact):
    """Shape and type of one tensor, without its data."""

    name: str
    """Dotted path in the input or output tree ("0", "1.hidden"), or a parameter's qualified name."""
    shape: tuple[int, ...]
    """Sizes, outermost first; () is a scalar tensor."""
    dtype: str
    """torch's name without the prefix: float32, int64, bool, ..."""
    stride: tuple[int, ...] | None = None
    """Element strides where they are not contiguous, else None."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense tensor of this shape."""
        return self.numel * ITEM_BYTES[self.dtype]


class Contract(Fact):
    """What a program must keep. Frozen at a run's first event; never silently loosened."""

    tolerance: Tolerance = Tolerance(rtol=1e-3, atol=1e-5)
    """Ceiling of the equality rule for floating-point outputs."""
    matmul_precision: Precision = "fp32"
    """Least precise format allowed in matrix products."""
    conv_precision: Precision = "fp32"
    """Least precise format allowed in convolutions and cuDNN's recurrent layers; tf32 by default on a GPU."""
    mode: Literal["train", "eval"] = "train"
    """Mode of the module when it runs; see `named_mode`."""
    shape_policy: Literal["batch-probe", "fixed"] = "batch-probe"
    """Whether a program must also cope with one other leading size."""
    buffers: BufferPolicy = "ignored"
    """What happens to buffers that the forward updates (running statistics)."""
    input_writes: Literal["compared", "ignored"] = "compared"
    """Whether a program must write to its inputs what the reference writes to them."""
    input_structure: Literal["ignored", "kept"] = "kept"
    """Whether the judge's own draws keep what every draw of the input maker has (triangular, sorted, ...)."""
    variants: tuple[str, ...] = ()
    """Further inputs that a program must take: a leading size, or the name of another input maker, each."""
    uses_rng: bool = False
    """Whether the forward draws random numbers; set when the reference is observed."""
    pytorch_share: float = 0.10
    """Share of the program's time that may be spent in eager PyTorch before it counts as `partial`."""
    input_low: float | None = None
    """Smallest value that a floating input may take (None: unbounded), respected by structured draws."""
    input_high: float | None = None
    """Largest value that a floating input may take (None: unbounded)."""
    relaxed: bool = False
    """Whether a caller openly loosened a field; marks every later result."""
    sources: dict[str, FieldSource] = Field(default_factory=dict[str, FieldSource])
    """Where each field's value came from; a field that is not named is a default."""

    @classmethod
    def default_for(cls, target: str) -> "Contract":
        """The contract of a reference on `target` about which nobody said anything.

        On a GPU, eager PyTorch lets convolutions use TF32 (`torch.backends.cudnn.allow_tf32`) and keeps
        products in fp32 (`torch.backends.cuda.matmul.allow_tf32`); a reference means what it does there.
        """
        return cls(conv_precision="tf32") if target.startswith("cuda") else cls()

    @property
    def named_mode(self) -> str:
        """`mode` where somebody named it, else "": a module stays in the mode in which its file leaves it.

        So KernelBench-style references are never put into eval mode.
        """
        return self.mode if self.mode == "eval" or "mode" in self.sources else ""


class SourceFile(Fact):
    """One file of a task or program."""

    path: str
    """Relative POSIX path inside the folder."""
    sha256: str
    """Hash of the content."""
    size: int
    """Bytes."""


class Task(Fact):
    """A reference with its entry, input maker, contract and target device."""

    name: str
    """Short name for people: the file's stem."""
    files: tuple[SourceFile, ...]
    """The reference's own source files; content lies in the store."""
    main: str
    """Which of `files` is imported."""
    entry: str = "Model"
    """Class (constructed) or callable (called as it is) in the main file."""
    style: Literal["kernelbench", "object"] = "kernelbench"
    """How entry and inputs are found."""
    inputs: str = "get_inputs"
    """Function of the main file that returns the positional inputs of one call."""
    init_inputs: str | None = "get_init_inputs"
    """Function that returns constructor arguments, or None when the entry takes none."""
    search_path: tuple[str, ...] = ()
    """Extra folders (absolute) that the reference may import from and read."""
    contract: Contract = Contract()
    target: str = "cpu"
    """`cpu` or `cuda:sm_90`."""

    @property
    def task_id(self) -> str:
        """Content hash that names the task."""
        return sha256_hex(self.canonical_json())


class ReferenceFacts(Fact):
    """What was observed when the reference ran once in the reference server."""

    inputs: tuple[TensorSpec, ...]
    """Tensor inputs in the order in which they cross the ABI."""
    outputs: tuple[TensorSpec, ...]
    """Tensor outputs, flattened in the order of the tree's leaves."""
    output_structure: str
    """JSON of the output tree: "leaf", ["tuple"|"list", ...], {"dict": {...}}, or ["scalar", kind]."""
    parameters: tuple[TensorSpec, ...]
    """Parameters and buffers in state_dict order, then non-persistent buffers."""
    buffers: tuple[str, ...] = ()
    """Names in `parameters` that are buffers."""
    mutated_buffers: tuple[str, ...] = ()
    """Buffers whose value changed in one forward."""
    changed_attributes: tuple[str, ...] = ()
    """Qualified names of plain attributes that one forward changed; they are reset before each call."""
    training: bool = True
    """Whether the module ran in training mode."""
    mode_layers: tuple[str, ...] = ()
    """Classes of its layers that compute something else in the other mode."""
    mode_warning: str = ""
    """That of `warnings` which says so, where nobody chose the mode; "" where none is due."""
    uses_rng: bool = False
    """Whether forward consumed the generator."""
    deterministic: bool = True
    """Whether two calls on the same inputs and state agreed bitwise."""
    repeat_error: float = 0.0
    """Largest difference between these two calls, relative to the output's rms; 1 where another whole number,
    NaN or shape came."""
    repeat_errors: dict[str, float] = Field(default_factory=dict[str, float])
    """The same for each output that differed, by its name. Empty in facts of older versions."""
    depends_on_inputs: bool = True
    """Whether other inputs changed the output beyond the tolerance."""
    warnings: tuple[str, ...] = ()
    """Plain sentences with the evidence, one per doubt about the reference."""
    input_structure: str = ""
    """JSON of the input tree: as `output_structure`, with ["constant", kind, text] for what is no tensor.
    "" in facts of older versions."""
    input_names: tuple[str, ...] = ()
    """Names of forward's arguments that may be given by position, in order."""
    entry_kind: Literal["class", "instance", "function", ""] = ""
    """What the entry is: a module's class, a module, or any other callable. "" in facts of older versions."""
    torch_version: str = ""
    """torch of the target interpreter."""
    python_version: str = ""
    """The target interpreter's version."""
