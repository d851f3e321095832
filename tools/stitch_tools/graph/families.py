"""Which family an operation belongs to: how its work is counted and who can take it over."""

from typing import Literal

Family = Literal[
    "gemm", "conv", "sdpa", "rnn", "layout", "view", "constant", "embedding", "random", "arithmetic", "other"
]

_NAMES: dict[Family, str] = {
    "gemm": "linear matmul mm bmm addmm addbmm baddbmm addmv mv dot vdot einsum outer inner bilinear "
    "chain_matmul",
    "conv": "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d",
    "layout": "contiguous clone cat concat concatenate stack pad constant_pad_nd reflection_pad1d "
    "reflection_pad2d replication_pad1d replication_pad2d repeat repeat_interleave tile roll flip rot90 tril "
    "triu index index_select gather take take_along_dim scatter scatter_add index_put index_add index_copy "
    "masked_select select_scatter slice_scatter copy pixel_shuffle pixel_unshuffle channel_shuffle im2col "
    "col2im meshgrid _to_copy",
    "view": "view _unsafe_view reshape _reshape_alias flatten unflatten transpose t permute squeeze "
    "unsqueeze expand expand_as broadcast_to broadcast_tensors slice select split split_with_sizes chunk "
    "tensor_split unbind narrow view_as reshape_as diagonal movedim moveaxis swapaxes swapdims numpy_T mT "
    "adjoint unfold as_strided alias detach ravel real imag view_as_real view_as_complex atleast_1d "
    "atleast_2d unsafe_chunk unsafe_split",
    "constant": "zeros ones full empty arange linspace eye zeros_like ones_like full_like empty_like "
    "new_zeros new_ones new_full new_empty scalar_tensor tril_indices triu_indices lift_fresh_copy",
    "sdpa": "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu",
    "rnn": "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    "embedding": "embedding embedding_bag _embedding_bag _embedding_bag_forward_only one_hot",
    "random": "dropout native_dropout feature_dropout alpha_dropout rand randn randint rand_like randn_like "
    "randint_like bernoulli normal uniform multinomial randperm rrelu",
}
_FAMILY_OF: dict[str, Family] = {name: family for family, names in _NAMES.items() for name in names.split()}


def base_name(op: str) -> str:
    """`linear` of `aten.linear.default`."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


def family_of(op: str) -> Family:
    """The operation's family. A name that is not listed counts as arithmetic: ATen has hundreds of those.

    An operation of another namespace than ATen is `other`.
    """
    name = base_name(op)
    if name in _FAMILY_OF:
        return _FAMILY_OF[name]
    return "arithmetic" if op.startswith("aten.") else "other"
