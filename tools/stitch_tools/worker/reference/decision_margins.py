"""How close the oracle's discrete decisions (argmax, topk, comparisons) were to falling the other way."""

import torch

from stitch_tools.worker.reference.rounding_depth import OpArguments, OpKeywords
from stitch_tools.worker.trees import tensors_in

_COMPARISONS = ("gt", "lt", "ge", "le", "eq", "ne")
_VIEWS = (
    "view",
    "_unsafe_view",
    "unsqueeze",
    "squeeze",
    "clone",
    "detach",
    "alias",
    "_to_copy",
    "t",
    "transpose",
)
_EXTREMES = ("argmax", "argmin", "max", "min")
_ORDERS = ("topk", "sort", "argsort")


class Margins:
    """Margins by storage, noted while the oracle runs."""

    def __init__(self) -> None:
        self._known: dict[int, torch.Tensor] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Per element, the distance from tipping over divided by the rms of the deciding values, or None."""
        margin = self._known.get(_key(tensor))
        return margin if margin is not None and margin.shape == tensor.shape else None

    def note(self, name: str, args: OpArguments, kwargs: OpKeywords, out: object) -> None:
        """Record the margins of one operation's discrete results."""
        for leaf in tensors_in(out):
            if leaf.is_floating_point() or leaf.is_complex():
                continue
            margin = self._margin(name, args, kwargs, leaf)
            if margin is not None and margin.shape == leaf.shape:
                self._known[_key(leaf)] = margin
            else:
                self._known.pop(_key(leaf), None)

    def _margin(
        self, name: str, args: OpArguments, kwargs: OpKeywords, out: torch.Tensor
    ) -> torch.Tensor | None:
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if source is None:
            return None
        if name in _VIEWS:
            known = self.of(source)
            return known.reshape(out.shape) if known is not None and name not in ("t", "transpose") else None
        if not source.is_floating_point() or not source.numel():
            return None
        if name in _COMPARISONS and len(args) > 1:
            return _margin_of((source - args[1]).abs(), source)
        dim = kwargs.get("dim", next((leaf for leaf in args[1:2] if isinstance(leaf, int)), None))
        if name in _EXTREMES:
            return _extreme_margin(source, dim, out)
        if name in _ORDERS:
            return _order_margin(name, source, args, kwargs, out)
        return None


def _extreme_margin(source: torch.Tensor, dim: int | None, out: torch.Tensor) -> torch.Tensor:
    values, axis = (source.flatten(), 0) if dim is None else (source, dim)
    if values.dim() == 0 or values.shape[axis] < 2:
        return torch.full_like(out, float("inf"), dtype=torch.float64)
    # The smaller of the two distances is a lower bound for both argmax and argmin.
    high = values.topk(2, dim=axis).values
    low = values.topk(2, dim=axis, largest=False).values
    gap = torch.minimum(
        high.select(axis, 0) - high.select(axis, 1), low.select(axis, 1) - low.select(axis, 0)
    )
    return _margin_of(gap.reshape(out.shape), source)


def _order_margin(
    name: str, source: torch.Tensor, args: OpArguments, kwargs: OpKeywords, out: torch.Tensor
) -> torch.Tensor:
    position = 2 if name == "topk" else 1
    dim = kwargs.get(
        "dim", args[position] if len(args) > position and isinstance(args[position], int) else -1
    )
    flags = [leaf for leaf in args[position + 1 :] if isinstance(leaf, bool)]
    default = name == "topk"
    descending = bool(kwargs.get("largest" if default else "descending", flags[0] if flags else default))
    if source.dim() == 0 or source.shape[dim] < 2:
        return torch.full_like(out, float("inf"), dtype=torch.float64)
    # A place in the order tips over to the nearer of its two neighbours.
    ordered = source.sort(dim=dim, descending=descending).values
    gaps = ordered.diff(dim=dim).abs()
    edge = torch.full_like(gaps.narrow(dim, 0, 1), float("inf"))
    nearest = torch.minimum(torch.cat([edge, gaps], dim), torch.cat([gaps, edge], dim))
    return _margin_of(nearest.narrow(dim, 0, out.shape[dim]), source)


def _margin_of(distance: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    finite = values[values.isfinite()]
    # Relative to all values that decide: a gap between two large ones is small beside their own rounding.
    rms = finite.square().mean().sqrt() if finite.numel() else values.new_ones(())
    return distance / rms.clamp_min(torch.finfo(torch.float64).tiny)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
