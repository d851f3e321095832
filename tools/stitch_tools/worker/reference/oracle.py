"""The reference once more in fp64: what the outputs would be without rounding.

A dispatch mode widens every floating tensor before each operation. Random operations are drawn in the type
that the reference draws in and widened afterwards, so that they consume the generator alike. An operation
that has no fp64 kernel runs in its own type and is named: then the oracle is `fp64-partial`.
"""

import functools
from dataclasses import dataclass, field
from typing import cast

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from stitch_tools.worker.aliased_inputs import map_shared
from stitch_tools.worker.random_streams import seed_generators
from stitch_tools.worker.reference.decision_margins import Margins
from stitch_tools.worker.reference.reference_calls import restore, snapshot
from stitch_tools.worker.reference.rounding_depth import (
    OpArguments,
    OpKeywords,
    Rounding,
    is_function,
    reduction_length,
    schema_of,
)
from stitch_tools.worker.replaced_tensors import replaced
from stitch_tools.worker.trees import (
    Flat,
    ValueT,
    call_with,
    flatten_inputs,
    flatten_outputs,
    fresh_copy,
    tensors_in,
)

_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float8_e4m3fn: torch.float64,
    torch.float8_e5m2: torch.float64,
    torch.complex64: torch.complex128,
}
_FLOATS = (*_WIDER, torch.float64)
_DROPOUTS = ("aten::native_dropout", "aten::_fused_dropout")
# Operations that exist for 8-bit operands alone.
_FOR_8_BITS = ("aten::_scaled_mm", "aten::_scaled_grouped_mm")
_MATMULS = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "addmv",
    "mv",
    "dot",
    "linear",
    "attention",
    "addr",
    "vdot",
    "cudnn_rnn",
)


@dataclass(frozen=True)
class OracleRun:
    """Outputs in fp64, and per output what its path allows in rounding."""

    outputs: Flat
    rounding: tuple[Rounding, ...]
    margins: tuple[torch.Tensor | None, ...]
    """Per discrete output, how far its decision is from tipping over, relative to the deciding values."""
    strict_ops: tuple[str, ...]
    """Operations that ran without fp64."""
    buffers: dict[str, torch.Tensor]
    """The buffers after the call."""
    inputs: dict[str, torch.Tensor]
    """The inputs after the call."""


@dataclass
class _Notes:
    """What is known about each storage: the type the reference would hold, and its path's rounding."""

    own: dict[int, torch.dtype] = field(default_factory=dict[int, torch.dtype])
    rounding: dict[int, Rounding] = field(default_factory=dict[int, Rounding])

    def own_dtype(self, tensor: torch.Tensor) -> torch.dtype:
        return self.own.get(_key(tensor), tensor.dtype)

    def path(self, tensors: list[torch.Tensor]) -> Rounding:
        known = [self.rounding.get(_key(tensor), Rounding.of(tensor.dtype)) for tensor in tensors]
        return Rounding.worst(known)

    def put(self, tensor: torch.Tensor, own: torch.dtype, path: Rounding, *, merge: bool) -> None:
        key = _key(tensor)
        if merge and key in self.rounding:
            path = Rounding.worst([path, self.rounding[key]])
        if not merge or key not in self.own:
            self.own[key] = own
        self.rounding[key] = path


class Fp64Mode(TorchDispatchMode):
    """Runs every operation inside it in fp64."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = _Notes()
        self.margins = Margins()
        self.strict_ops: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Torch would import its compiler at the first operation, 2 s in every server, only to keep it away
        # from this mode: it keeps away from what runs under a mode anyway.
        return False

    def register(self, wide: torch.Tensor, own: torch.dtype) -> None:
        """Remember that `wide` stands for a tensor of type `own`."""
        self.notes.put(wide, own, Rounding.of(own), merge=False)

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: OpArguments = (), kwargs: OpKeywords | None = None
    ) -> object:
        kwargs = dict(kwargs or {})
        tensors = tensors_in((args, kwargs))
        if _is_random(func, args, kwargs):
            out = self._random(func, args, kwargs)
        elif func is torch.ops.aten.view.dtype:
            out = self._in_own_type(func, args, kwargs)  # the bits are meant
        elif schema_of(func).name in _FOR_8_BITS:
            out = self._strict(func, args, kwargs)
        elif tensors:
            out = self._wide(func, args, kwargs)
        else:
            # A factory rounds its constants to its own type, as in the reference.
            out = tree_map(_widened, func(*args, **kwargs))
        self._note(func, args, kwargs, tensors, out)
        return out

    def _wide(self, func: OpOverload, args: OpArguments, kwargs: OpKeywords) -> object:
        name = schema_of(func).name
        if name.endswith("softmax") and len(args) == 3 and isinstance(args[2], bool):
            args = (*args[:2], False)  # half_to_float: the input is not half any more
        wide_args, wide_kwargs, written = _widen_call(func, args, kwargs)
        try:
            out = func(*wide_args, **wide_kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented for" not in str(error) and not isinstance(error, NotImplementedError):
                raise
            return self._strict(func, args, kwargs)
        if any(leaf.dtype in _WIDER for leaf in tensors_in(out)) and not written:
            # Integers divided or averaged: the result type follows torch's default, so widen the operands.
            out = self._from_integers(func, wide_args, wide_kwargs, out)
        for narrow, wide in written:
            narrow.copy_(wide)
            self.strict_ops.add(name)
        return tree_map(lambda leaf: _original(leaf, written), out)

    def _from_integers(self, func: OpOverload, args: OpArguments, kwargs: OpKeywords, out: object) -> object:
        def widen(leaf: object) -> object:
            if (
                not isinstance(leaf, torch.Tensor)
                or leaf.dtype in (*_FLOATS, torch.bool)
                or leaf.is_complex()
            ):
                return leaf
            return leaf.to(torch.float64)

        try:
            again = func(*tree_map(widen, args), **tree_map(widen, kwargs))
        except (RuntimeError, NotImplementedError):
            again = out
        return tree_map(_widened, again)

    def _strict(self, func: OpOverload, args: OpArguments, kwargs: OpKeywords) -> object:
        self.strict_ops.add(schema_of(func).name)
        return self._in_own_type(func, args, kwargs)

    def _random(self, func: OpOverload, args: OpArguments, kwargs: OpKeywords) -> object:
        if schema_of(func).name in _DROPOUTS:
            _, mask = cast("tuple[torch.Tensor, torch.Tensor]", self._in_own_type(func, args, kwargs))
            rate = args[1]
            kept = args[0].to(torch.float64) * mask
            return (kept / (1 - rate) if rate < 1 else kept), mask
        return self._in_own_type(func, args, kwargs)

    def _in_own_type(self, func: OpOverload, args: OpArguments, kwargs: OpKeywords) -> object:
        """The operation in the types that the reference holds; results and written arguments widened."""
        leaves, spec = tree_flatten((args, kwargs))
        narrowed = [
            leaf.to(self.notes.own_dtype(leaf)) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        ]
        narrow_args, narrow_kwargs = tree_unflatten(narrowed, spec)
        out = func(*narrow_args, **narrow_kwargs)
        pairs = [
            (wide, narrow)
            for wide, narrow in zip(leaves, narrowed, strict=True)
            if isinstance(wide, torch.Tensor) and narrow is not wide
        ]
        written = _written(func, args, kwargs)
        for wide, narrow in pairs:
            if id(wide) in written:
                wide.copy_(narrow)
        return tree_map(lambda leaf: _widened(_original(leaf, pairs)), out)

    def _note(
        self,
        func: OpOverload,
        args: OpArguments,
        kwargs: OpKeywords,
        tensors: list[torch.Tensor],
        out: object,
    ) -> None:
        own = _result_type(self.notes, tensors, args, kwargs)
        name = schema_of(func).name.removeprefix("aten::")
        path = self.notes.path(tensors).after(
            length=reduction_length(name, args, out),
            matmul=any(part in name for part in _MATMULS),
            # cuDNN's recurrent layers are products under the switch for convolutions.
            conv="conv" in name or name == "_cudnn_rnn",
            function=is_function(name),
        )
        inputs = {_key(tensor) for tensor in tensors}
        for leaf in tensors_in(out):
            if leaf.numel():
                dtype = own if leaf.dtype in _FLOATS and own is not None else leaf.dtype
                if not tensors and leaf.dtype == torch.float64:
                    dtype = kwargs.get("dtype") or torch.get_default_dtype()
                # The reference rounds to its own type here, whatever the operands were.
                self.notes.put(leaf, dtype, path.rounded_to(dtype), merge=_key(leaf) in inputs)
        self.margins.note(name, args, kwargs, out)


def run_oracle(
    module: torch.nn.Module,
    arguments: object,
    *,
    forward_seed: int | None,
    device: str | None = None,
    mode: Fp64Mode | None = None,
) -> OracleRun:
    """The outputs in fp64, on `device` (None: where the module is). The module and its state are left alone.

    `mode` is a fresh one of another kind than the plain one.

    Raises:
        Exception: whatever the user's code raises when its tensors are fp64; the caller falls back.
    """
    state = snapshot(module)
    mode = mode or Fp64Mode()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def register(tensor: torch.Tensor) -> torch.Tensor:
        wide = _widened(fresh_copy(tensor.detach(), device))
        mode.register(wide, tensor.dtype)
        return wide

    wide = {name: register(tensor) for name, tensor in tensors.items()}
    own = map_shared(arguments, register)
    state.attributes.restore(register)
    try:
        if forward_seed is not None:
            seed_generators(forward_seed)
        with torch.no_grad(), mode, replaced(module, wide):
            raw = call_with(module, own)
            # Forward may have put another tensor in a buffer's place.
            buffers = dict(module.named_buffers(remove_duplicate=False))
        flat = flatten_outputs(raw)
    finally:
        restore(module, state)
    outputs = tuple(_widened(tensor.detach()) for tensor in flat.tensors)
    return OracleRun(
        Flat(flat.names, outputs, flat.structure),
        tuple(mode.notes.path([tensor]) for tensor in flat.tensors),
        tuple(mode.margins.of(tensor) for tensor in flat.tensors),
        tuple(sorted(mode.strict_ops)),
        {name: buffers.get(name, wide[name]) for name, _ in module.named_buffers()},
        dict(zip(flatten_inputs(own).names, flatten_inputs(own).tensors, strict=True)),
    )


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _widened(leaf: ValueT) -> ValueT:
    if isinstance(leaf, torch.Tensor) and leaf.dtype in _WIDER:
        return cast("ValueT", leaf.to(_WIDER[leaf.dtype]))
    return leaf


def _original(leaf: object, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> object:
    """The caller's own tensor where `leaf` is the temporary that stood in for it (in-place operations)."""
    return next((own for own, temporary in pairs if leaf is temporary), leaf)


def _widen_call(
    func: OpOverload, args: OpArguments, kwargs: OpKeywords
) -> tuple[OpArguments, OpKeywords, list[tuple[torch.Tensor, torch.Tensor]]]:
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    targets = _written(func, args, kwargs)

    def change(leaf: object) -> object:
        if isinstance(leaf, torch.dtype):
            return _WIDER.get(leaf, leaf)
        wide = _widened(leaf)
        if (
            isinstance(leaf, torch.Tensor)
            and isinstance(wide, torch.Tensor)
            and wide is not leaf
            and id(leaf) in targets
        ):
            written.append((leaf, wide))
        return wide

    wide_args, wide_kwargs = tree_map(change, (args, kwargs))
    return wide_args, wide_kwargs, written


def _written(func: OpOverload, args: OpArguments, kwargs: OpKeywords) -> set[int]:
    """Ids of the arguments that the operation writes to."""
    if not schema_of(func).is_mutable:
        return set()
    result: set[int] = set()
    for index, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            result.update(id(leaf) for leaf in tree_flatten(value)[0])
    return result


def _is_random(func: OpOverload, args: OpArguments, kwargs: OpKeywords) -> bool:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    schema = schema_of(func)
    for index, argument in enumerate(schema.arguments):
        if argument.name in ("dropout_p", "dropout"):  # attention and recurrent layers draw only with dropout
            value = args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(value)
        if argument.name in ("train", "training") and schema.name in _DROPOUTS:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            return value is not False
    return True


def _result_type(
    notes: _Notes, tensors: list[torch.Tensor], args: OpArguments, kwargs: OpKeywords
) -> torch.dtype | None:
    asked = next((leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.dtype)), None)
    if asked is not None:
        return asked
    floats = [tensor for tensor in tensors if tensor.dtype in _FLOATS]
    if not floats:
        return torch.get_default_dtype() if tensors else None
    # 0-d tensors do not raise the type of larger ones.
    ranked = [notes.own_dtype(tensor) for tensor in floats if tensor.dim()]
    ranked = ranked or [notes.own_dtype(tensor) for tensor in floats]
    # 8-bit floats are promoted to nothing: who mixes them with others names the type.
    wide = [dtype for dtype in ranked if dtype.itemsize > 1]
    return functools.reduce(torch.promote_types, wide) if wide else ranked[0]
