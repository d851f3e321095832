"""Kernels that nothing launches, work that may go on after forward, and results that are kept."""

import ast
from collections.abc import Iterator

from tree_sitter import Node

from stitch_tools.judge.source.cuda_source import CudaSource, identifiers, inside, text_of
from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule, hit_in
from stitch_tools.judge.source.words import words

_NO_LAUNCH = words("""
    cudaFuncSetAttribute cudaFuncGetAttributes cudaFuncSetCacheConfig cuFuncSetAttribute
    cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaOccupancyMaxPotentialBlockSize
    cudaFuncSetSharedMemConfig cudaOccupancyMaxActiveClusters cudaOccupancyMaxPotentialClusterSize
""")
_MAX_NAME = 200
_THREADS = words("""
    threading.Thread threading.Timer _thread.start_new_thread concurrent.futures.ThreadPoolExecutor
    concurrent.futures.ProcessPoolExecutor multiprocessing.Process multiprocessing.Pool
    torch.multiprocessing.Process torch.multiprocessing.spawn asyncio.create_task os.fork os.posix_spawn
""")
_THREAD_JOINS = words("join result shutdown wait waitpid")
_STREAMS = words("torch.cuda.Stream torch.Stream torch.cuda.ExternalStream")
_STREAM_JOINS = words("wait_stream wait_event synchronize wait")
_CUDA_THREADS = words("std::thread std::async pthread_create thrd_create fork vfork posix_spawn clone")
_CUDA_DETACHES = words("detach pthread_detach thrd_detach")
_CUDA_THREAD_JOINS = words("join get pthread_join thrd_join wait waitpid")
_CUDA_STREAMS = words("""
    cudaStreamCreate cudaStreamCreateWithFlags cudaStreamCreateWithPriority cuStreamCreate
""")
_CUDA_STREAM_JOINS = words("""
    cudaStreamWaitEvent cudaStreamSynchronize cudaDeviceSynchronize cuStreamWaitEvent cudaEventSynchronize
    cuStreamSynchronize cuCtxSynchronize getCurrentCUDAStream
""")
_MEMO = words("functools.lru_cache functools.cache")
_CAPTURES = words("cudaStreamBeginCapture cuStreamBeginCapture")


def find_unlaunched(program: ScannedProgram) -> Iterator[RuleHit]:
    """Kernels that nothing mentions; suspicious where no kernel at all is launched."""
    used = {name for source in program.cuda for name in _launchable(source)}
    for node, _ in program.python.of(ast.Constant):
        # `RawKernel(source, "name")` and the like ask for kernels by name.
        if isinstance(node.value, str) and len(node.value) < _MAX_NAME:
            used.add(node.value)
    kernels = [(source, row) for source in program.cuda for row in source.functions if row.is_kernel]
    idle = [(source, row) for source, row in kernels if row.name not in used]
    for source, kernel in idle:
        severity = "suspicious" if len(idle) == len(kernels) else "note"
        message = f"kernel {kernel.name} is defined and never launched"
        yield RuleHit(source.file, source.line(kernel.node), message, severity)


def _launchable(source: CudaSource) -> Iterator[str]:
    """Names that a text mentions outside of declarations and of calls that only set attributes."""
    setters = (call.node for call in source.calls if call.short in _NO_LAUNCH)
    quiet = {part.id for node in setters for part in inside(node, "identifier")}
    yield from (text_of(node) for node in source.of("identifier") if node.id not in quiet)
    for call in source.calls:
        yield from call.texts  # `cuModuleGetFunction(&kernel, module, "name")`
    for node in source.of("preproc_arg"):
        yield from identifiers(text_of(node))


def find_unjoined(program: ScannedProgram) -> Iterator[RuleHit]:
    """Threads, processes and streams that nothing waits for."""
    python = program.python
    managed = {row.context_expr for node, _ in python.of(ast.With) for row in node.items}
    joins = {call.method for call in python.calls}
    for call, path in program.calls_to(_THREADS):
        if call.node not in managed and not joins & _THREAD_JOINS:
            yield hit_in(program, call.scope, call.node, f"{path} is started, and nothing waits for it")
    joins = {call.method for call in python.calls if call.scope in python.hot}
    for call, path in program.calls_to(_STREAMS):
        if not joins & _STREAM_JOINS:
            yield hit_in(program, call.scope, call.node, f"forward never waits for work on this {path}")
    for source in program.cuda:
        yield from _unjoined_in_cuda(source)


def _unjoined_in_cuda(source: CudaSource) -> Iterator[RuleHit]:
    names = {call.short for call in source.calls}
    is_joined = bool(names & _CUDA_THREAD_JOINS) and not names & _CUDA_DETACHES
    for call in source.calls:
        is_start = call.name.removeprefix("::") in _CUDA_THREADS and not call.is_method
        if is_start and not is_joined and call.name not in source.own_names:
            yield RuleHit(
                source.file, source.line(call.node), f"{call.name} starts work that nothing waits for"
            )
        elif call.short in _CUDA_STREAMS and not names & _CUDA_STREAM_JOINS:
            # A stream that only records a graph has no work of its own; which one it is, is not followed.
            severity = "note" if names & _CAPTURES else "suspicious"
            yield RuleHit(
                source.file, source.line(call.node), "nothing waits for work on this stream", severity
            )
    for node in source.of("declaration"):
        if text_of(node).startswith("std::thread ") and not is_joined:
            yield RuleHit(source.file, source.line(node), "a thread is started, and nothing joins it")


def find_kept_results(program: ScannedProgram) -> Iterator[RuleHit]:
    """Results that functools keeps, and tensors that C++ code keeps.

    What a module keeps in Python is left to the check, which changes inputs in place and looks for old
    results: text does not tell scratch memory from results.
    """
    python = program.python
    for scope in python.hot:
        rows = [] if isinstance(scope.node, ast.Module) else scope.node.decorator_list
        for row in rows:
            function = row.func if isinstance(row, ast.Call) else row
            if _MEMO & set(python.names.paths(function, scope.parent or scope)) and _takes_arguments(
                scope.node
            ):
                yield RuleHit(scope.file, row.lineno, f"the results of {scope.name} are remembered")
    for source in program.cuda:
        for node in source.of("declaration"):
            yield from _kept_in_cuda(source, node)


def _takes_arguments(node: ast.AST) -> bool:
    """Whether a function takes any: what is remembered of one without is a module that was built, say."""
    return isinstance(node, ast.FunctionDef) and bool(node.args.posonlyargs or node.args.args)


def _kept_in_cuda(source: CudaSource, node: Node) -> Iterator[RuleHit]:
    """Static or global tensors, and maps of them."""
    kind = text_of(node.child_by_field_name("type"))
    is_static = any(text_of(row) == "static" for row in node.children)
    # `torch::Tensor scale(torch::Tensor x);` declares a function, and `TensorMap` is no tensor.
    is_function = any(row.type == "function_declarator" for row in node.named_children)
    is_tensor = any(name.rpartition("::")[2] == "Tensor" for name in identifiers(kind))
    if is_tensor and not is_function and (is_static or node.id not in source.owners):
        by_address = "map<" in kind and "*" in kind.partition("<")[2].partition(",")[0]
        # Scratch memory that is kept looks like a result that is kept, unless it is found by an address.
        severity = "suspicious" if by_address else "note"
        yield RuleHit(source.file, source.line(node), "tensors are kept between calls", severity)


RULES = (
    SourceRule(
        "kernel_not_launched",
        "suspicious",
        "A kernel is defined, and nothing launches it. A note where other kernels are launched.",
        "Remove it, or launch it; launches are counted when the program runs.",
        find_unlaunched,
    ),
    SourceRule(
        "work_not_joined",
        "suspicious",
        "A thread, process or CUDA stream is started, and nothing waits for its work, which could fall "
        "outside the measured time. A note for a stream where the file captures graphs.",
        "Join threads before forward returns; let the caller's stream wait for an event of the other one.",
        find_unjoined,
    ),
    SourceRule(
        "result_kept",
        "suspicious",
        "functools keeps results of a function that forward calls, or C++ code keeps tensors by address. "
        "Other lasting tensors of C++ are a note.",
        "Compute every output in every call; whether a result is stale is tried with changed inputs.",
        find_kept_results,
    ),
)
