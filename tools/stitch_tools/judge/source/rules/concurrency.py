"""Work that may go on after forward has returned."""

import ast
from collections.abc import Iterator

from tree_sitter import Node

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.native import Call, NativeUnit, inside, text_of
from stitch_tools.judge.source.rule import Hit, Rule
from stitch_tools.judge.source.rules.common import calls_to, hit_in, is_hot
from stitch_tools.judge.source.words import listed, words

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
_CAPTURE_BEGINS = words("cudaStreamBeginCapture cuStreamBeginCapture")
_CAPTURE_ENDS = words("cudaStreamEndCapture cuStreamEndCapture")
_STREAM_ENDS = words("cudaStreamDestroy cuStreamDestroy")


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
            if call.short not in _NATIVE_STREAMS or names & set(_NATIVE_STREAM_JOINS):
                continue
            if not _only_captures(unit, call):
                yield Hit(unit.file, unit.line(call.node), "work on this stream is never waited for")


def _only_captures(unit: NativeUnit, created: Call) -> bool:
    """Whether a local stream only records graphs: then nothing runs on it that could be waited for.

    Every mention of it must lie in its making, its end, or between the begin and the end of a capture.
    """
    name = text_of(created.arguments[0]).lstrip("&").strip() if created.arguments else ""
    function = created.function
    if function is None or not name.isidentifier():
        return False
    mine = [call for call in unit.calls if call.function is function]
    begins, ends = _places(mine, _CAPTURE_BEGINS, name), _places(mine, _CAPTURE_ENDS, name)
    if not begins or len(begins) != len(ends):
        return False
    free = [call.node for call in mine if call.short in (*_NATIVE_STREAMS, *_STREAM_ENDS)]
    allowed = [(node.start_byte, node.end_byte) for node in free]
    allowed += [(begin.start_byte, end.end_byte) for begin, end in zip(begins, ends, strict=True)]
    allowed += [
        (node.start_byte, node.end_byte)
        for node in inside(function.body, "declaration")
        if "=" not in text_of(node)
    ]
    mentions = [node for node in inside(function.body, "identifier") if text_of(node) == name]
    return all(any(start <= node.start_byte < end for start, end in allowed) for node in mentions)


def _places(calls: list[Call], names: frozenset[str], stream: str) -> list[Node]:
    """The calls to these functions on that stream, in the order of the text."""
    found = [
        call.node
        for call in calls
        if call.short in names and call.arguments and text_of(call.arguments[0]) == stream
    ]
    return sorted(found, key=lambda node: node.start_byte)


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
