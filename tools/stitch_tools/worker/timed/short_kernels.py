"""Short kernels of several kinds, one after the other: what a graph of a real network consists of."""

import torch

_ELEMENTS = 16384


def short_kernel_values(device: str) -> torch.Tensor:
    """What the kernels work on: small enough that starting them takes longer than their work."""
    return torch.zeros(_ELEMENTS, device=device)


def launch_short_kernels(values: torch.Tensor, rounds: int) -> int:
    """Launch them so many times over; returns the number of kernels.

    Each is of another kind than the one before: a chain of one kind alone runs faster, since its code and
    constants are in place already.
    """
    for _ in range(rounds):
        # In place, and such that all values stay finite however often it runs.
        values.cos_().add_(1.5).sqrt_().mul_(0.5).neg_().abs_().sigmoid_().tanh_().relu_().exp_()
    return 10 * rounds
