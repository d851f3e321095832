"""Children that misbehave, run inside the sandbox by the tests of processes. Not a test module."""

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from stitch_tools.protocol.serving import Handler, serve_ops
from stitch_tools.protocol.wire import Channel, Frame

LIBC = ctypes.CDLL(None, use_errno=True)
kept: list[Any] = []


def segfault(request: Frame) -> Frame:
    ctypes.string_at(0)
    return Frame()


def send_signal(request: Frame) -> Frame:
    os.kill(os.getpid(), request.message["number"])
    time.sleep(60)
    return Frame()


def hang(request: Frame) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        pass


def leave(request: Frame) -> NoReturn:
    os._exit(request.message["code"])


def leave_politely(request: Frame) -> NoReturn:
    sys.exit(request.message["code"])


def grow_private(request: Frame) -> Frame:
    kept.append(bytearray(request.message["nbytes"]))
    return Frame()


def grow_shared(request: Frame) -> Frame:
    import mmap

    while True:  # shared pages are no "data" for the kernel's own limit: only the watchdog sees them
        area = mmap.mmap(-1, 64 << 20)
        kept.append(area)
        for offset in range(0, len(area), 4096):
            area[offset] = 1


def grow_tensor(request: Frame) -> Frame:
    import torch

    kept.append(torch.empty(request.message["nbytes"], dtype=torch.uint8))
    return Frame()


def bad_alloc(request: Frame) -> Frame:
    library = ctypes.CDLL("libstdc++.so.6")
    allocate = library["_Znwm"]
    allocate.restype = ctypes.c_void_p
    while True:
        kept.append(allocate(ctypes.c_size_t(1 << 26)))


def flood(request: Frame) -> Frame:
    line = b"nothing to see here\n" * 1000
    while True:
        os.write(1, line)


def speak(request: Frame) -> Frame:
    print("a word to stdout", flush=True)
    print("a word to stderr", file=sys.stderr, flush=True)
    os.write(2, b"straight to the descriptor\n")
    return Frame()


def answer_from_fork(request: Frame) -> Frame:
    if os.fork():
        while True:
            time.sleep(60)
    return Frame({"from": "the fork"})


def breed(request: Frame) -> NoReturn:
    while True:
        os.fork()


def spin_threads(request: Frame) -> Frame:
    import threading

    while True:
        try:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        except RuntimeError:  # as many as the machine allows: the watchdog of a busy one comes later
            time.sleep(0.1)


def leave_grandchild(request: Frame) -> Frame:
    child = os.fork()
    if not child:
        os.setsid()
        if not os.fork():
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            os.closerange(0, 64)
            while True:
                time.sleep(60)
        os._exit(0)
    os.waitpid(child, 0)  # the grandchild is there now, and nobody's
    return Frame()


def close_descriptors(request: Frame) -> NoReturn:
    os.closerange(0, 1024)
    while True:
        time.sleep(60)


def babble(request: Frame) -> Frame:
    for fd in range(3, 64):
        try:
            socket.socket(fileno=os.dup(fd)).sendall(b"this is no frame at all" * 10)
        except OSError:
            continue
    return Frame()


def answer_twice(request: Frame) -> Frame:
    channel: Channel = kept[0]
    channel.send(Frame({"ok": True, "seq": request.message["seq"]}))
    return Frame()


def fail(request: Frame) -> Frame:
    raise KeyError("a fault of the handler")


def look(request: Frame) -> Frame:
    """What the child sees of itself."""
    return Frame(
        {
            "environment": dict(os.environ),
            "processes": [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()],
            "descriptors": sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()),
            "capabilities": _status_field("CapEff"),
            "no_new_privs": _status_field("NoNewPrivs"),
            "seccomp": _status_field("Seccomp"),
            "folder": str(Path.cwd()),
            "own_modules": sorted(name for name in sys.modules if name.startswith("stitch_tools")),
            "has_pydantic": "pydantic" in sys.modules,
            "dumpable": LIBC.prctl(3, 0, 0, 0, 0),
        }
    )


def try_paths(request: Frame) -> Frame:
    """For each path, whether it can be read and whether it can be written."""
    return Frame({path: _try_path(Path(path)) for path in request.message["paths"]})


def _try_path(path: Path) -> str:
    marks = ""
    try:
        if path.is_dir():
            list(path.iterdir())
        else:
            with path.open("rb") as file:
                file.read(1)
        marks += "r"
    except OSError:
        pass
    try:
        target = path / "new" if path.is_dir() else path
        with target.open("ab"):
            marks += "w"
    except OSError:
        pass
    return marks


def try_calls(request: Frame) -> Frame:
    """For each attack the name of the error it met, "done" where it succeeded."""
    other = int(request.message["other_pid"])
    attacks = {
        "internet": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "udp6": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "unix_datagram": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        "unix_connect": lambda: socket.socket(socket.AF_UNIX).connect(request.message["unix_path"]),
        "ptrace": lambda: _raw(101, 16, other),
        "read_memory": lambda: _raw(310, other, 0, 0, 0, 0, 0),
        "write_memory": lambda: _raw(311, other, 0, 0, 0, 0, 0),
        "open_memory": lambda: Path(f"/proc/{other}/mem").open("rb").close(),
        "new_user_namespace": lambda: _raw(272, 0x10000000),
        "clone_user_namespace": lambda: _raw(56, 0x10000000 | 17, 0, 0, 0, 0),
        "mount": lambda: _raw(165, b"tmpfs", b"/mnt", b"tmpfs", 0, 0),
        "io_uring": lambda: _raw(425, 4, ctypes.create_string_buffer(120)),
        "pidfd_getfd": lambda: _raw(438, 0, 0, 0),
        "unset_death_signal": lambda: _raw(157, 1, 0, 0, 0, 0),
        "x32_call": lambda: _raw(0x40000000 + 39),
    }
    return Frame({name: _attempt(attack) for name, attack in attacks.items()})


def _attempt(attack: Any) -> str:
    try:
        attack()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def _raw(number: int, *args: Any) -> int:
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in args]
    result: int = LIBC.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def kill_each(request: Frame) -> Frame:
    """For each pid (0: the own parent) the name of the error that killing it met."""
    return Frame(
        {
            str(pid): _attempt(lambda pid=pid: os.kill(pid or os.getppid(), 9))
            for pid in request.message["pids"]
        }
    )


def kill_init_and_wait(request: Frame) -> NoReturn:
    os.kill(os.getppid(), signal.SIGKILL)
    while True:
        time.sleep(60)


def fill_scratch(request: Frame) -> Frame:
    try:
        with Path("much").open("wb") as file:
            for _ in range(request.message["mib"]):
                file.write(bytes(1 << 20))
    except OSError as error:
        return Frame({"error": errno.errorcode[error.errno or 0]})
    while True:
        time.sleep(60)


def run_program(request: Frame) -> Frame:
    done = subprocess.run(request.message["command"], capture_output=True, text=True, check=False)
    return Frame({"code": done.returncode, "text": done.stdout + done.stderr})


def count_up(request: Frame) -> Frame:
    """A thread of this process and a forked one count in shared memory while others look."""
    import mmap

    area = mmap.mmap(request.fds[0], 4096)
    kept.append(area)
    if not os.fork():
        while True:
            area[0] = (area[0] + 1) % 256
    return Frame()


def keep_busy(request: Frame) -> Frame:
    """A thread computes without end."""
    import threading

    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()
    return Frame()


def wake_by_timer(request: Frame) -> Frame:
    """What the system says to a timer that sends SIGCONT."""
    event, timer = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0), ctypes.c_void_p()
    return Frame({"errno": LIBC.timer_create(1, event, ctypes.byref(timer)) and ctypes.get_errno()})


def matmul(request: Frame) -> Frame:
    import torch

    left = torch.ones(64, 64)
    return Frame({"sum": float((left @ left).sum()), "threads": torch.get_num_threads()})


def compile_module(request: Frame) -> Frame:
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU())
    compiled = torch.compile(module, dynamic=False)
    with torch.inference_mode():
        inputs = torch.randn(4, 16)
        return Frame({"error_max": float((compiled(inputs) - module(inputs)).abs().max())})


def use_gpu(request: Frame) -> Frame:
    """A product on the GPU, from shared memory and back into it, pinned."""
    import torch

    from stitch_tools.worker.tensors import map_pack

    started = time.monotonic()
    (inputs,) = map_pack(request.fds[0], request.message["manifest"], writable=True)
    (outputs,) = map_pack(request.fds[1], request.message["manifest"], writable=True, private=False)
    runtime: Any = torch.cuda.cudart()
    pinned = runtime.cudaHostRegister(outputs.data_ptr(), outputs.nbytes, 0)
    product = inputs.cuda() @ inputs.cuda()
    outputs.copy_(product)
    torch.cuda.synchronize()
    torch.nn.functional.conv2d(torch.ones(1, 8, 16, 16).cuda(), torch.ones(8, 8, 3, 3).cuda())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    took_s = time.monotonic() - started
    return Frame({"pinned": int(pinned), "took_s": took_s, "data": _status_field("VmData")})


def spin_gpu(request: Frame) -> Frame:
    import torch

    torch.cuda._sleep(1 << 50)
    torch.cuda.synchronize()
    return Frame()


def _status_field(name: str) -> str:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name + ":"))


HANDLERS: dict[str, Handler] = {
    function.__name__: function
    for function in (
        segfault,
        send_signal,
        hang,
        leave,
        leave_politely,
        grow_private,
        grow_shared,
        grow_tensor,
        bad_alloc,
        flood,
        speak,
        answer_from_fork,
        breed,
        spin_threads,
        leave_grandchild,
        close_descriptors,
        babble,
        answer_twice,
        fail,
        look,
        try_paths,
        try_calls,
        kill_each,
        kill_init_and_wait,
        fill_scratch,
        run_program,
        count_up,
        keep_busy,
        wake_by_timer,
        matmul,
        compile_module,
        use_gpu,
        spin_gpu,
    )
}


def serve(channel: Channel, scratch: str) -> None:
    """Serve every operation above."""
    kept.append(channel)
    serve_ops(channel, HANDLERS)
