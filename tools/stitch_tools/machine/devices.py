"""What this machine computes with: its CPU and its GPUs, found without torch, and what a `--target` means."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter

from stitch_tools.errors import UsageError
from stitch_tools.worker import cuda_driver

DEFAULT_ARCH = "sm_90"
_QUERY_LIMIT_S = 30.0
_PASSED_ON = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
)


@dataclass(frozen=True)
class Cpu:
    """The processor."""

    model: str
    """Name, with family and model number where the name alone is vague ("AMD EPYC")."""
    cores: int
    """Physical cores of the machine."""
    usable: int
    """Logical CPUs that this process may run on."""
    l1d_bytes: int | None
    """Data cache of one core."""
    l2_bytes: int | None
    """Second-level cache of one core or cluster."""
    l3_bytes: int | None
    """Third-level cache of the machine, all instances together."""
    flags: frozenset[str]
    """Instruction set extensions in the kernel's spelling: avx2, avx512f, avx512_bf16, ..."""

    @property
    def last_level_cache_bytes(self) -> int:
        """The largest cache, 0 where the system does not say."""
        return self.l3_bytes or self.l2_bytes or self.l1d_bytes or 0


@dataclass(frozen=True)
class Gpu:
    """One CUDA device."""

    index: int
    """Number under which CUDA knows it here."""
    name: str
    uuid: str
    """GPU-xxxxxxxx-..., as nvidia-smi writes it."""
    arch: str
    """sm_90, ..."""
    memory_bytes: int
    l2_bytes: int | None = None


@dataclass(frozen=True)
class GpuSearch:
    """The GPUs, or why there are none."""

    gpus: tuple[Gpu, ...]
    driver: str | None
    """Version of the kernel driver ("580.95.05")."""
    driver_cuda: str | None
    """Newest CUDA version that the driver runs ("13.0")."""
    problem: str | None
    """Why `gpus` is empty, one sentence."""


@dataclass(frozen=True)
class Target:
    """A device as tasks and programs name it."""

    name: str
    """`cpu` or `cuda:sm_90`."""
    available: bool
    """Whether such a device is in this machine: programs for others are built and stay unmeasured."""
    device: str
    """Model name, or why it is not available."""
    gpu: Gpu | None = None


def resolve_target(text: str, search: GpuSearch | None = None) -> Target:
    """The device behind `cpu`, `cuda` (the GPU here, else sm_90), `cuda:1` (by number) or `cuda:sm_90`.

    Args:
        text: what the caller wrote.
        search: the GPUs to choose from; None looks for them.

    Raises:
        UsageError: the name is none of these, there is no GPU of that number, or it is not the first one.
    """
    if text == "cpu":
        return Target("cpu", True, cpu_info().model)
    match = re.fullmatch(r"cuda(?::(?:(?P<index>\d{1,3})|(?P<arch>sm_\d{2,3}[af]?)))?", text)
    if match is None:
        raise UsageError(f"{text!r} is not a target", hint="use cpu, cuda, or cuda:sm_90")
    found = find_gpus() if search is None else search
    if match["index"] is not None:
        gpu = next((gpu for gpu in found.gpus if gpu.index == int(match["index"])), None)
        if gpu is None:
            here = ", ".join(str(row.index) for row in found.gpus) or f"none ({found.problem})"
            raise UsageError(f"there is no GPU number {match['index']}", hint=f"GPUs here: {here}")
        return _first_visible(f"cuda:{gpu.arch}", gpu)
    if match["arch"] is None:
        gpu = found.gpus[0] if found.gpus else None
        arch = gpu.arch if gpu else DEFAULT_ARCH
    else:
        arch = match["arch"]
        # Code for sm_90a runs on an sm_90 device: the letter names features, not another chip.
        gpu = next((gpu for gpu in found.gpus if gpu.arch == arch.rstrip("af")), None)
    if gpu is None:
        others = ", ".join(f"{row.name} ({row.arch})" for row in found.gpus)
        reason = f"the GPUs here are {others}" if others else found.problem or "no GPU was found"
        return Target(f"cuda:{arch}", False, reason)
    return _first_visible(f"cuda:{arch}", gpu)


def _first_visible(name: str, gpu: Gpu) -> Target:
    # Children run on CUDA's first device, whose lock, ceilings and certificate must be its own.
    if gpu.index != 0:
        raise UsageError(
            f"programs run on the first visible GPU, and {gpu.name} is number {gpu.index}",
            hint=f"set CUDA_VISIBLE_DEVICES={gpu.index} and use {{target}} cuda",
            options=("target",),
        )
    return Target(name, True, gpu.name, gpu)


@lru_cache(maxsize=1)
def find_gpus() -> GpuSearch:
    """The GPUs that CUDA sees here by its driver's word (CUDA_VISIBLE_DEVICES holds)."""
    answer = _ask_driver()
    driver = _driver_version(Path("/proc/driver/nvidia/version"))
    gpus = TypeAdapter(tuple[Gpu, ...]).validate_python(answer.get("gpus", ()))
    if gpus:
        return GpuSearch(gpus, driver, _cuda_version(answer.get("driver_cuda")), None)
    problem = str(answer.get("problem") or "the driver sees no GPU")
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        problem += f" (CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']})"
    return GpuSearch((), driver, None, problem)


def usable_cpus() -> int:
    """How many CPUs this process may run on now; not cached, since a caller may confine it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def cpu_info() -> Cpu:
    """The processor of this machine; what the system does not tell is None or empty."""
    return read_cpu(Path("/"))


def read_cpu(root: Path) -> Cpu:
    """The processor described by the `proc` and `sys` folders below `root`."""
    text = _read(root / "proc" / "cpuinfo")
    blocks = [_key_values(block) for block in text.split("\n\n") if block.strip()]
    first = blocks[0] if blocks else {}
    cores = {(block.get("physical id", ""), block.get("core id", str(i))) for i, block in enumerate(blocks)}
    caches = _caches(root / "sys" / "devices" / "system" / "cpu")
    return Cpu(
        model=_model_name(first),
        cores=len(cores) or os.cpu_count() or 1,
        usable=usable_cpus(),
        l1d_bytes=caches.get("1 Data", (None, 0))[0],
        l2_bytes=caches.get("2 Unified", (None, 0))[0],
        l3_bytes=_total(caches.get("3 Unified")),
        flags=frozenset((first.get("flags") or first.get("Features") or "").split()),
    )


def _ask_driver() -> Mapping[str, object]:
    try:
        completed = subprocess.run(
            [sys.executable, "-I", "-S", cuda_driver.__file__, "gpus"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_QUERY_LIMIT_S,
            check=True,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        )
        return json.loads(completed.stdout)
    except ValueError:
        return {"problem": "the CUDA driver's answer could not be read"}
    except (OSError, subprocess.SubprocessError):
        return {"problem": "the CUDA driver did not answer"}


def _driver_version(path: Path) -> str | None:
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", _read(path))
    return found.group(1) if found else None


def _cuda_version(number: object) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _key_values(block: str) -> dict[str, str]:
    rows = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in rows}


def _model_name(first: Mapping[str, str]) -> str:
    name = first.get("model name") or platform.processor() or platform.machine() or "unknown CPU"
    if re.search(r"\d", name):
        return name
    numbers = [f"{key.removeprefix('cpu ')} {first[key]}" for key in ("cpu family", "model") if key in first]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def _caches(folder: Path) -> dict[str, tuple[int, int]]:
    """Size in bytes and number of instances by "level type"."""
    sizes: dict[str, int] = {}
    instances: dict[str, set[str]] = {}
    for index in folder.glob("cpu[0-9]*/cache/index*"):
        kind = f"{_read(index / 'level').strip()} {_read(index / 'type').strip()}"
        size = re.fullmatch(r"(\d+)([KMG])", _read(index / "size").strip())
        if size is not None:
            sizes[kind] = int(size.group(1)) << {"K": 10, "M": 20, "G": 30}[size.group(2)]
            instances.setdefault(kind, set()).add(_read(index / "shared_cpu_list"))
    return {kind: (size, len(instances[kind])) for kind, size in sizes.items()}


def _total(cache: tuple[int, int] | None) -> int | None:
    return None if cache is None else cache[0] * cache[1]
