"""Work that may go on after forward has returned."""

import ast
from collections.abc import Iterator

from stitch_tools.evidence.context import Scanned
from stitch_tools.evidence.native import NativeUnit, text_of
from stitch_tools.evidence.rule import Hit, Rule
from stitch_tools.evidence.rules.common import calls_to, hit_in, is_hot
from stitch_tools.evidence.words import listed, words

_THREADS = words("""
    threading.Thread threading.Timer _thread.start_new_thread concurrent.futures.ThreadPoolExecutor
    concurrent.futures.ProcessPoolExecutor concurrent.futures.thread.ThreadPoolExecutor
    multiprocessing.Process multiprocessing.Pool multiprocessing.pool.ThreadPool
    torch.multiprocessing.Process torch.multiprocessing.spawn asyncio.create_task
""")
_JOINS = words("join result shutdown wait map")
_STREAMS = words("torch.cuda.Stream torch.Stream torch.cuda.ExternalStream")
_STREAM_JOINS = words("wait_stream wait_event synchronize wait")
_NATIVE_STREAMS = listed("""
    cudaStreamCreate cudaStreamCreateWithFlags cudaStreamCreateWithPriority cuStreamCreate
""")
_NATIVE_STREAM_JOINS = listed("""
    cudaStreamWaitEvent cudaStreamSynchronize cudaDeviceSynchronize cuStreamWaitEvent cudaEventSynchronize
    cuStreamSynchronize cuCtxSynchronize getCurrentCUDAStream
""")


def find_threads(scanned: Scanned) -> Iterator[Hit]:
    """Threads and processes that nothing waits for."""
    for call, path in calls_to(scanned, _THREADS):
        names = {
            node.method for node in scanned.host.calls if node.file == call.file and node.method in _JOINS
        }
        parent = call.scope.unit.parents.get(call.node)
        is_managed = isinstance(parent, ast.withitem)
        if not is_managed and not _joined(path, names):
            yield hit_in(scanned, call.scope, call.node, f"{path} is started, and nothing waits for it")
    for unit in scanned.native:
        yield from _native_threads(unit)


def _joined(path: str, names: set[str]) -> bool:
    if path.startswith("_thread") or path == "asyncio.create_task":
        return False
    return bool(names - {"map"}) if not path.endswith("Pool") and "Executor" not in path else bool(names)


def _native_threads(unit: NativeUnit) -> Iterator[Hit]:
    has_join = any(call.is_method and call.name in ("join", "get", "wait") for call in unit.calls)
    for call in unit.calls:
        if call.short in ("pthread_detach", "thrd_detach"):
            yield Hit(unit.file, unit.line(call.node), "a thread is detached")
        elif call.short in ("pthread_create", "thrd_create"):
            if not any(other.short in ("pthread_join", "thrd_join") for other in unit.calls):
                yield Hit(unit.file, unit.line(call.node), "a thread is created, and nothing joins it")
        elif call.name == "std::async" and not has_join:
            yield Hit(unit.file, unit.line(call.node), "std::async is started, and nothing waits for it")
    threads = [node for node in unit.of("declaration") if "std::thread" in text_of(node)[:80]]
    threads += [call.node for call in unit.calls if call.name == "std::thread"]
    detached = any(call.is_method and call.name == "detach" and not call.arguments for call in unit.calls)
    for node in threads:
        if detached or not has_join:
            yield Hit(unit.file, unit.line(node), "a thread is started that nothing joins")


def find_streams(scanned: Scanned) -> Iterator[Hit]:
    """Streams that nothing waits for."""
    for call, path in calls_to(scanned, _STREAMS):
        waits = [
            other
            for other in scanned.host.calls
            if other.method in _STREAM_JOINS and is_hot(scanned, other.scope)
        ]
        if not waits:
            yield hit_in(
                scanned, call.scope, call.node, f"work on this {path} is never waited for in forward"
            )
    for unit in scanned.native:
        names = {call.short for call in unit.calls}
        for call in unit.calls:
            if call.short in _NATIVE_STREAMS and not names & set(_NATIVE_STREAM_JOINS):
                yield Hit(unit.file, unit.line(call.node), "work on this stream is never waited for")


RULES = (
    Rule(
        "thread_not_joined",
        "suspicious",
        "A thread or process is started, and nothing waits for it: its work could fall outside the "
        "measured time.",
        "Join it before forward returns.",
        find_threads,
    ),
    Rule(
        "stream_not_joined",
        "suspicious",
        "A CUDA stream is created, and nothing waits for its work.",
        "Record an event on it and let the caller's stream wait for that before forward returns.",
        find_streams,
    ),
)
