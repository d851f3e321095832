"""What this machine computes with: CPUs, GPUs, the lock on a device, and what disturbs a timing."""
