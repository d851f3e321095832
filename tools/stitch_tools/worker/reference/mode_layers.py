"""Layers that compute something else in training mode than in eval mode."""

from pathlib import PurePath

import torch

_NORMS = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
    torch.nn.InstanceNorm1d,
    torch.nn.InstanceNorm2d,
    torch.nn.InstanceNorm3d,
)
_DROPOUTS = (
    torch.nn.Dropout,
    torch.nn.Dropout1d,
    torch.nn.Dropout2d,
    torch.nn.Dropout3d,
    torch.nn.AlphaDropout,
    torch.nn.FeatureAlphaDropout,
)


def mode_layers(module: torch.nn.Module) -> dict[str, str]:
    """What layers do in training mode alone, in words, by their class.

    Layers that are in another mode than the module are left out: their mode was fixed by hand.
    """
    result: dict[str, str] = {}
    for layer in module.modules():
        if layer.training != module.training:
            continue
        if words := _in_training(layer):
            result.setdefault(type(layer).__name__, words)
    return result


def _in_training(layer: torch.nn.Module) -> str:
    if isinstance(layer, _NORMS):
        return "uses the statistics of the batch" if layer.track_running_stats else ""
    if isinstance(layer, _DROPOUTS):
        return "drops values at random" if layer.p > 0 else ""
    if isinstance(layer, torch.nn.RNNBase):
        return "drops values at random between its layers" if layer.dropout > 0 < layer.num_layers - 1 else ""
    if isinstance(layer, torch.nn.MultiheadAttention):
        return "drops weights at random" if layer.dropout > 0 else ""
    return ""


def describe_training(layers: dict[str, str], main: str) -> str:
    """That a reference runs in training mode, what that means, and where to choose the other mode.

    Args:
        layers: as `mode_layers` gives them; not empty.
        main: the reference's file.
    """
    what = ", ".join(f"{name} {words}" for name, words in layers.items())
    return (
        f'the reference runs in train mode: {what}; for inference write mode = "eval" under [contract]'
        f" in {PurePath(main).stem}.task.toml"
    )
