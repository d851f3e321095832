"""What a device reaches at best: bandwidths, matrix products, and the launch of nothing.

Interference only ever makes a rate lower, so every figure is the best of many short repetitions.
"""

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from stitch_tools.protocol.free_memory import available_bytes
from stitch_tools.protocol.timing_messages import DeviceRates
from stitch_tools.worker.precision import precision
from stitch_tools.worker.timed.short_kernels import launch_short_kernels, short_kernel_values

_PRODUCT_BUDGET_S, _BUDGET_S = 1.0, 0.5
_TRANSFER_BYTES, _TRANSFER_BUDGET_S = 64 << 20, 0.2
# torch adds a thread for each so many elements (at::internal::GRAIN_SIZE).
_ELEMENTS_OF_A_THREAD = 32768


def _matmul_rates(device: str) -> dict[str, float]:
    """Floating-point operations per second of a large matrix product by format, the best that was seen."""
    cuda = device.startswith("cuda")
    formats = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if not cuda:
        # Half formats on a CPU without native support run through fp32 and would take minutes here.
        formats = {"fp32": torch.float32}
    rates = {name: _matmul_rate(dtype, device, 8192 if cuda else 1024) for name, dtype in formats.items()}
    if cuda:
        with precision("tf32", "tf32"):
            rates["tf32"] = _matmul_rate(torch.float32, device, 8192)
    return rates


def _matmul_rate(dtype: torch.dtype, device: str, size: int) -> float:
    # Random data: zeros draw less power and would promise clocks that real data never sees.
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty(size, size, device=device, dtype=dtype)

    def product() -> None:
        torch.mm(left, right, out=out)
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    with torch.inference_mode():
        return 2.0 * size**3 / _best_seconds(product, _PRODUCT_BUDGET_S)


def _best_seconds(work: Callable[[], object], budget_s: float) -> float:
    best, end = float("inf"), time.perf_counter() + budget_s
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def cpu_rates(cache_bytes: int) -> DeviceRates:
    """Of this process' threads; `cache_bytes` is the last-level cache."""
    large = min(max(2 * cache_bytes, 32 << 20), available_bytes() // 8)
    # Both arrays together take a quarter of the cache: other tenants use some of it, too.
    small = max(cache_bytes // 8, 64 << 10)
    return DeviceRates(
        flops_per_s=_matmul_rates("cpu"),
        copy_bytes_per_s=2.0 * large / _copy_seconds(large, 1),
        cache_bytes_per_s=2.0 * small / _copy_seconds(small, 64),
        write_bytes_per_s=2.0 * large / _fill_seconds(2 * large),
        launch_s=_region_seconds(),
    )


def _copy_seconds(nbytes: int, inner: int) -> float:
    source, target = (torch.ones(nbytes, dtype=torch.uint8) for _ in range(2))
    to, of = target.data_ptr(), source.data_ptr()
    return _pass_seconds(lambda at, count: ctypes.memmove(to + at, of + at, count), nbytes, inner)


def _fill_seconds(nbytes: int) -> float:
    target = torch.ones(nbytes, dtype=torch.uint8)
    return _pass_seconds(lambda at, count: ctypes.memset(target.data_ptr() + at, 1, count), nbytes, 1)


def _pass_seconds(work: Callable[[int, int], object], nbytes: int, inner: int) -> float:
    """Of one pass over so many bytes, each thread's share by the C library, which knows stores past caches.

    `inner` passes make one timed piece, so that a piece is long against waking the threads.
    """
    threads = torch.get_num_threads()
    share = nbytes // threads

    def passes(thread: int) -> None:
        for _ in range(inner):
            work(thread * share, share)

    with ThreadPoolExecutor(threads) as pool:
        return _best_seconds(lambda: list(pool.map(passes, range(threads))), _BUDGET_S) / inner


def _region_seconds() -> float:
    """What all threads take longer than one that does as much as each of them: starting and joining them."""
    alone = torch.zeros(_ELEMENTS_OF_A_THREAD)
    shared = torch.zeros(_ELEMENTS_OF_A_THREAD * torch.get_num_threads())
    longer_s = _best_seconds(lambda: shared.fill_(1.0), _BUDGET_S)
    return max(0.0, longer_s - _best_seconds(lambda: alone.fill_(1.0), _BUDGET_S))


def cuda_rates(device: str, cache_bytes: int) -> DeviceRates:
    """Of a CUDA device, by its events; `cache_bytes` is its L2 cache."""
    return DeviceRates(
        flops_per_s=_matmul_rates(device),
        copy_bytes_per_s=_copy_rate(device, 1 << 30, 1),
        cache_bytes_per_s=_copy_rate(device, max(1 << 20, cache_bytes // 8), 50),
        write_bytes_per_s=_fill_rate(device),
        launch_s=_launch_seconds(device),
        node_s=_node_seconds(device),
        transfers=transfer_rates(device),
    )


def _copy_rate(device: str, nbytes: int, inner: int) -> float:
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copies() -> None:
        for _ in range(inner):
            target.copy_(source)

    return 2.0 * nbytes * inner / _best_event_seconds(copies)


def _fill_rate(device: str) -> float:
    memory = torch.zeros(1 << 28, dtype=torch.float32, device=device)
    return memory.nbytes / _best_event_seconds(lambda: memory.fill_(1.0))


def transfer_rates(device: str) -> dict[str, float]:
    """Bytes per second of large copies between host and `device`, from pinned memory and from pageable.

    Taken by the host's clock, since a copy from pageable memory is half the host's work. Where no memory can
    be pinned, those rates are missing.
    """
    remote = torch.ones(_TRANSFER_BYTES, dtype=torch.uint8, device=device)
    rates: dict[str, float] = {}
    for kind in ("pageable", "pinned"):
        try:
            local = torch.ones(_TRANSFER_BYTES, dtype=torch.uint8, pin_memory=kind == "pinned")
        except RuntimeError:
            continue
        for direction, target, source in (("to_device", remote, local), ("to_host", local, remote)):
            seconds = _best_seconds(lambda to=target, of=source: _copy_and_wait(to, of), _TRANSFER_BUDGET_S)
            rates[f"{direction}_{kind}"] = _TRANSFER_BYTES / seconds
    return rates


def _copy_and_wait(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _launch_seconds(device: str) -> float:
    tiny = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    tiny.add_(1.0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(200):
            tiny.add_(1.0)
    # Inside a graph the host does not limit: this is the device's own time from one kernel to the next.
    return _best_event_seconds(graph.replay) / 200.0


def _node_seconds(device: str) -> float:
    """The slope over two lengths of a graph of short kernels of several kinds."""
    values = short_kernel_values(device)
    launch_short_kernels(values, 1)
    torch.cuda.synchronize()
    counts: list[int] = []
    seconds: list[float] = []
    for rounds in (10, 30):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            counts.append(launch_short_kernels(values, rounds))
        seconds.append(_best_event_seconds(graph.replay))
    return (seconds[1] - seconds[0]) / (counts[1] - counts[0])


def _best_event_seconds(work: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    best, stop = float("inf"), time.perf_counter() + _BUDGET_S
    while time.perf_counter() < stop or best == float("inf"):
        begin.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) * 1e-3)
    return best
