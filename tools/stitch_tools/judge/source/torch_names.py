"""Which names of torch compute something."""

from typing import Literal

from stitch_tools.graph.families import family_of
from stitch_tools.judge.source.words import prefixes, words

OpKind = Literal["compute", "layout", "free"]
"""`layout` moves or draws data; `free` allocates, views, converts, or is no tensor operation."""


_PREFIXES = prefixes("""
    torch.nn.functional. torch.ops.aten. torch.ops.prims. torch._C._nn. torch._C._VariableFunctions.
    torch._C._linalg. torch._C._fft. torch._C._special. torch._VF. torch._refs.nn.functional. torch._refs.
    torch._decomp. torch.Tensor. torch.special. torch.linalg. torch.fft. torch.sparse. torch.nested.
    torch.nn.attention. torch.
""")
_FREE = words("""
    no_grad enable_grad inference_mode set_grad_enabled is_grad_enabled is_tensor is_floating_point
    is_complex is_storage device dtype Size tensor as_tensor asarray from_numpy from_dlpack to_dlpack
    frombuffer Generator manual_seed initial_seed seed get_rng_state set_rng_state get_default_dtype
    set_default_dtype set_default_device get_default_device finfo iinfo compile load save numel typename
    get_num_threads set_num_threads result_type can_cast promote_types empty_strided empty_permuted
    set_float32_matmul_precision get_float32_matmul_precision use_deterministic_algorithms
    are_deterministic_algorithms_enabled equal allclose is_nonzero broadcast_shapes memory_format layout
    contiguous clone copy_ copy to type type_as float half bfloat16 double int long short bool byte char
    cpu cuda item tolist numpy size stride storage_offset dim ndimension nelement element_size data_ptr
    untyped_storage storage is_contiguous get_device requires_grad_ detach_ register_hook record_stream
    is_pinned pin_memory is_shared share_memory_ apply_ map_ has_names rename retain_grad zero_ fill_
    set_ resize_ resize_as_ new_tensor __dlpack__ __dlpack_device__ vmap autocast wait is_conj is_neg
    is_inference backward unsqueeze_ squeeze_ transpose_ t_ as_strided_ native_dropout_ index_fill_
    values keys items get append extend pop insert update setdefault split_ __len__ __class__ __init__
    lobpcg_ name_ default overload overloads is_same_size refine_names align_to positive conj is_signed
    is_set_to is_sparse dense_dim sparse_dim decode
""")
_TENSOR_WORDS = words("""
    matmul mm bmm addmm baddbmm mv relu relu_ gelu sigmoid sigmoid_ tanh tanh_ exp exp_ log log2 log10
    log1p sqrt rsqrt softmax log_softmax clamp clamp_ add add_ sub sub_ mul mul_ div div_ pow abs neg
    sin cos layer_norm masked_fill masked_fill_ bernoulli_ normal_ uniform_ erf addcmul addcdiv lerp sum
    mean var std amax amin argmax argmin cumsum cumprod prod logsumexp einsum sort topk maximum minimum
    norm true_divide reciprocal square silu leaky_relu hardtanh
""")
_MODULES_FREE = words("""
    Module Parameter ParameterList ParameterDict ModuleList ModuleDict Identity Flatten
    Unflatten UninitializedParameter Buffer Dropout
""")
_AMBIGUOUS = words("sum mean add sub mul div pow sort norm log exp sqrt abs neg var std prod")


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


def op_kind(name: str) -> OpKind:
    """What an operation of this name does; an unknown one computes."""
    bare = name.strip("_") if name.startswith("__") else name
    if bare in _FREE or name in _FREE or bare.startswith(("is_", "get_", "set_")):
        return "free"
    family = family_of(f"aten.{bare.rstrip('_') or bare}.default")
    if family in ("view", "constant"):
        return "free"
    return "layout" if family in ("layout", "random") else "compute"


def is_tensor_word(name: str) -> bool:
    """Whether a method of this name is a tensor's most likely, whatever its receiver is."""
    return name in _TENSOR_WORDS and name not in _AMBIGUOUS


def is_module(path: str) -> bool:
    """Whether calling an object of this class computes: `torch.nn.Linear`."""
    if not path.startswith(("torch.nn.", "torch.ao.nn.")):
        return False
    name = path.rpartition(".")[2]
    return name[:1].isupper() and name not in _MODULES_FREE


def is_constant_maker(name: str) -> bool:
    """Whether the operation makes a tensor of nothing but its size: `empty`, `zeros_like`."""
    return family_of(f"aten.{name}.default") == "constant"
