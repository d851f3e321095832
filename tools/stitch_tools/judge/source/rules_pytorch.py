"""PyTorch, or another library of ready-made operations, where the program's kernels should do the work."""

import ast
from collections.abc import Iterator

from tree_sitter import Node

from stitch_tools.graph.families import family_of
from stitch_tools.judge.source.cuda_source import CudaSource, identifiers, text_of
from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule, hit_in
from stitch_tools.judge.source.python_names import IMPORTERS
from stitch_tools.judge.source.python_reach import PythonCall
from stitch_tools.judge.source.words import prefixes, words

_PREFIXES = prefixes("""
    torch.nn.functional. torch.ops.aten. torch.ops.prims. torch._C._nn. torch._C._VariableFunctions.
    torch._C._linalg. torch._C._fft. torch._C._special. torch._VF. torch._refs.nn.functional. torch._refs.
    torch._decomp. torch.Tensor. torch.special. torch.linalg. torch.fft. torch.sparse. torch.nested.
    torch.nn.attention. torch.
""")
_FREE = words("""
    __dlpack__ __dlpack_device__ __len__ allclose append are_deterministic_algorithms_enabled as_tensor
    asarray autocast backward bfloat16 bool broadcast_shapes byte can_cast char compile cpu cuda data_ptr
    dense_dim device dim double dtype element_size empty_permuted empty_strided enable_grad equal extend
    fill_ finfo float from_dlpack from_numpy frombuffer get half iinfo index_fill_ inference_mode
    initial_seed insert int item items keys layout load long manual_seed memory_format ndimension nelement
    new_tensor no_grad numel numpy pin_memory pop positive promote_types record_stream requires_grad_
    resize_ resize_as_ result_type retain_grad save seed setdefault share_memory_ short size sparse_dim
    storage storage_offset stride tensor to to_dlpack tolist type type_as typename untyped_storage update
    use_deterministic_algorithms values vmap wait zero_
""")
_TENSOR_WORDS = words("""
    matmul mm bmm addmm baddbmm mv relu relu_ gelu sigmoid sigmoid_ tanh tanh_ exp_ log2 log10 log1p rsqrt
    softmax log_softmax clamp clamp_ add_ sub_ mul_ div_ sin cos layer_norm masked_fill masked_fill_
    bernoulli_ normal_ uniform_ erf addcmul addcdiv lerp amax amin argmax argmin cumsum cumprod logsumexp
    einsum topk maximum minimum true_divide reciprocal square silu leaky_relu hardtanh
""")
_MODULES_FREE = words("""
    Module Parameter ParameterList ParameterDict ModuleList ModuleDict Identity Flatten
    Unflatten UninitializedParameter Buffer Dropout
""")
_COMPILERS = words("""
    torch.compile torch.jit.script torch.jit.trace torch.jit.freeze torch.jit.optimize_for_inference
    torch._dynamo.optimize torch._inductor.compile torch.export.export torch.fx.symbolic_trace
    torch.cuda.make_graphed_callables torch._inductor.aoti_compile_and_package
""")
_LIBRARIES = prefixes("""
    scipy. jax. tensorflow. torchvision. torchaudio. transformers. timm. flash_attn. xformers. apex. keras.
    onnxruntime. tensorrt. torch_tensorrt. opt_einsum. numpy.linalg. numpy.fft. numpy.matmul numpy.dot
    numpy.einsum numpy.tensordot numpy.inner numpy.exp numpy.tanh numpy.convolve
""")
_EXECUTORS = words("""
    builtins.exec builtins.eval builtins.compile marshal.loads marshal.load pickle.loads pickle.load
    dill.loads types.FunctionType types.CodeType runpy.run_path runpy.run_module
""")
_SPACES = words("at torch at::native torch::nn::functional torch::special torch::linalg torch::fft at::_ops")
_NO_OPERATIONS = words("from_blob check dtype device autograd jit cuda indexing data optim utils nn")


def op_of(path: str) -> str | None:
    """`matmul` of `torch.ops.aten.matmul.default`; None where the name is no tensor operation."""
    for prefix in _PREFIXES:
        if not path.startswith(prefix):
            continue
        name, _, overload = path.removeprefix(prefix).partition(".")
        if overload and not prefix.startswith("torch.ops"):
            return None
        return name if name[:1].islower() or name[:1] == "_" else None
    return None


def computes(name: str) -> bool:
    """Whether an operation of this name does more than move, draw or allocate data; an unknown one does."""
    bare = name.strip("_") if name.startswith("__") else name
    if bare in _FREE or name in _FREE or bare.startswith(("is_", "get_", "set_")):
        return False
    family = family_of(f"aten.{bare.rstrip('_') or bare}.default")
    return family not in ("view", "constant", "layout", "random")


def is_module(path: str) -> bool:
    """Whether calling an object of this class computes: `torch.nn.Linear`."""
    if not path.startswith(("torch.nn.", "torch.ao.nn.")):
        return False
    name = path.rpartition(".")[2]
    return name[:1].isupper() and name not in _MODULES_FREE


def operation(call: PythonCall) -> str | None:
    """What PyTorch, or another library, computes in this call; None where it computes nothing."""
    for path in call.paths:
        name, layer = op_of(path), path.removesuffix(".forward").removesuffix("()")
        if name is not None and computes(name):
            return name
        if path.startswith(_LIBRARIES) or (layer != path and is_module(layer)):
            return layer
    return call.method if not call.paths and call.method in _TENSOR_WORDS else None


def find_torch_ops(program: ScannedProgram) -> Iterator[RuleHit]:
    """Operations of PyTorch or another library in forward, in Python and in C++."""
    for call in program.python.calls:
        name = operation(call) if call.scope in program.python.hot else None
        if name is not None:
            yield RuleHit(call.scope.file, call.node.lineno, f"forward computes with {name}")
    for node, scope in program.python.of(ast.BinOp):
        if scope in program.python.hot and isinstance(node.op, ast.MatMult):
            yield RuleHit(scope.file, node.lineno, "forward computes with the operator @")
    hot = program.hot_functions()
    for source in program.cuda:
        for node, name in _cuda_operations(source):
            if node.type == "preproc_arg" or source.owners.get(node.id) in hot:
                yield RuleHit(source.file, source.line(node), f"the C++ code calls PyTorch's {name}")
        for call in source.calls:
            if call.is_method and call.function in hot and call.name in _TENSOR_WORDS and _uses_aten(source):
                yield RuleHit(
                    source.file, source.line(call.node), f"the C++ code calls PyTorch's {call.name}"
                )


def _uses_aten(source: CudaSource) -> bool:
    return any(mark in source.text for mark in (b"torch/", b"torch::", b"at::", b"ATen"))


def _cuda_operations(source: CudaSource) -> Iterator[tuple[Node, str]]:
    """PyTorch's operations by qualified name, also in macros: `#define OP at::relu`."""
    for node in (*source.of("qualified_identifier"), *source.of("preproc_arg")):
        for word in identifiers(text_of(node).partition("<")[0]):
            space, _, name = word.removeprefix("::").rpartition("::")
            is_constant = name[:1] == "k" and name[1:2].isupper()  # kLong, kCUDA, kStrided
            is_function = space in _SPACES and name[:1].islower() and not is_constant
            if is_function and name not in _NO_OPERATIONS and computes(name):
                yield node, name


def find_compilers(program: ScannedProgram) -> Iterator[RuleHit]:
    """Compilers of PyTorch code, called or as decorators."""
    for node, scope in (*program.python.of(ast.Name), *program.python.of(ast.Attribute)):
        for path in program.python.names.paths(node, scope):
            if path in _COMPILERS:
                yield hit_in(program, scope, node, f"{path} hands the work to a compiler of PyTorch's")


def find_hidden_code(program: ScannedProgram) -> Iterator[RuleHit]:
    """Code that is no code in the file, and names of torch that are not written out."""
    for call, path in program.calls_to(_EXECUTORS):
        message = f"{path.removeprefix('builtins.')} runs code that does not stand in the file as code"
        yield hit_in(program, call.scope, call.node, message)
    for call, path in program.calls_to(("builtins.getattr", *IMPORTERS)):
        if _hides_name(program, call, path):
            yield hit_in(program, call.scope, call.node, f"{path} looks up a name that is not written out")


def _hides_name(program: ScannedProgram, call: PythonCall, path: str) -> bool:
    """Whether an operation of torch, or a name that is computed, is looked up."""
    names = program.python.names
    targets = names.paths(call.node, call.scope)
    if path == "builtins.getattr":
        owners = names.paths(call.node.args[0], call.scope) if call.node.args else ()
        is_torch = any(owner.partition(".")[0] == "torch" and "()" not in owner for owner in owners)
        found = [op_of(target) for target in targets]
        is_operation = any(name is not None and computes(name) for name in found)
        # Outside of forward a computed name is most often a dtype's.
        return is_operation or (is_torch and call.scope in program.python.hot and f"{path}()" in targets)
    return f"{path}()" in targets or any(target.partition(".")[0] == "torch" for target in targets)


RULES = (
    SourceRule("torch_op_in_forward", "suspicious", find_torch_ops),
    SourceRule("torch_compiler", "suspicious", find_compilers),
    SourceRule("hidden_code", "suspicious", find_hidden_code),
)
