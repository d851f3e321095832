"""Kernels that nothing launches, work that may go on after forward, and results that are kept."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.cuda_source import CudaSource, identifiers, text_of
from stitch_tools.judge.source.program import RuleHit, ScannedProgram, SourceRule, hit_in
from stitch_tools.judge.source.words import words

_MAX_NAME = 200
_THREADS = words("""
    threading.Thread threading.Timer _thread.start_new_thread concurrent.futures.ThreadPoolExecutor
    concurrent.futures.ProcessPoolExecutor multiprocessing.Process multiprocessing.Pool
    torch.multiprocessing.Process torch.multiprocessing.spawn asyncio.create_task os.fork os.posix_spawn
""")
_THREAD_JOINS = words("join result shutdown wait waitpid")
_CUDA_THREADS = words("std::thread std::async pthread_create thrd_create fork vfork posix_spawn clone")
_CUDA_DETACHES = words("detach pthread_detach thrd_detach")
_CUDA_THREAD_JOINS = words("join get pthread_join thrd_join wait waitpid")
_STREAMS = words("""
    cudaStreamCreate cudaStreamCreateWithFlags cudaStreamCreateWithPriority cuStreamCreate
""")
_STREAM_JOINS = words("""
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
    """Names that a text mentions outside of declarations."""
    yield from map(text_of, source.of("identifier"))
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
        elif call.short in _STREAMS and not names & _STREAM_JOINS:
            # A stream that only records a graph has no work of its own; which one it is, is not followed.
            severity = "note" if names & _CAPTURES else "suspicious"
            yield RuleHit(
                source.file, source.line(call.node), "nothing waits for work on this stream", severity
            )
    for node in source.of("declaration"):
        if text_of(node).startswith("std::thread ") and not is_joined:
            yield RuleHit(source.file, source.line(node), "a thread is started, and nothing joins it")


def find_kept_results(program: ScannedProgram) -> Iterator[RuleHit]:
    """Results that functools keeps.

    What else is kept is left to the check, which changes inputs in place and looks for old results: text does
    not tell scratch memory from results.
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


def _takes_arguments(node: ast.AST) -> bool:
    """Whether a function takes any: what is remembered of one without is a module that was built, say."""
    return isinstance(node, ast.FunctionDef) and bool(node.args.posonlyargs or node.args.args)


RULES = (
    SourceRule("kernel_not_launched", "suspicious", find_unlaunched),
    SourceRule("work_not_joined", "suspicious", find_unjoined),
    SourceRule("result_kept", "suspicious", find_kept_results),
)
