"""Tensors there and back between two processes on one GPU, both ways: what is tried out, and what is timed.

One process is the judge, the other the program's; both serve the same requests, each asked for its own part.
"""

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.messages import Fd
from stitch_tools.protocol.messages_session import ProbeReply, ProbeStep
from stitch_tools.protocol.serving import Handlers, on, serve_ops
from stitch_tools.protocol.wire import Channel
from stitch_tools.worker import exported_memory
from stitch_tools.worker.cuda_driver import DriverError
from stitch_tools.worker.tensors import create_on_device, export_pack, map_pack, write_pack
from stitch_tools.worker.trees import fresh_copy

_POISON = 0xFF


class Side:
    """What one of the two processes holds."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device
        self.master = torch.empty(0, dtype=torch.uint8)
        """The judge's; it never leaves this process."""
        self.taken = torch.empty(0, dtype=torch.uint8)
        """The program's own copy."""

    def wait(self) -> None:
        """Until the device has done what it was asked for."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def serve(channel: Channel, scratch: str) -> None:
    """Answer the controller until it asks us to exit."""
    serve_ops(channel, handlers(Side()))


def handlers(side: Side) -> Handlers:
    """Handlers by operation. `refused` in an answer is the driver's reason against memory for two."""
    steps = {
        "start": _start,
        "send": _send,
        "poison": _poison,
        "take": _take,
        "give": _give,
        "read": _read,
    }

    def answer(message: ProbeStep) -> ProbeReply:
        try:
            return steps[message.step](side, message)
        except DriverError as error:
            return ProbeReply(refused=str(error))

    return on(ProbeStep, answer)


def _start(side: Side, message: ProbeStep) -> ProbeReply:
    if side.device == "cuda":
        if not torch.cuda.is_available():
            return ProbeReply(refused="torch sees no CUDA device here")
        if message.on_device:
            exported_memory.require_support(torch.cuda.current_device())
        side.wait()
    return ProbeReply()


def _send(side: Side, message: ProbeStep) -> ProbeReply:
    if side.master.numel() != message.nbytes:
        side.master = torch.randint(256, (message.nbytes,), dtype=torch.uint8, device=side.device)
    pack = export_pack if message.on_device else write_pack
    fd, manifest = pack([("x", side.master)])
    return ProbeReply(manifest=manifest, fds=(Fd(fd),))


def _poison(side: Side, message: ProbeStep) -> ProbeReply:
    nbytes = memory.end_of(message.manifest)
    fd = create_on_device(nbytes) if message.on_device else memory.create(nbytes)
    (outputs,) = map_pack(fd, message.manifest, writable=True, private=False)
    outputs.fill_(_POISON)
    side.wait()
    return ProbeReply(fds=(Fd(fd),))


def _take(side: Side, message: ProbeStep) -> ProbeReply:
    (inputs,) = map_pack(message.fds[0], message.manifest, writable=True)
    side.taken = fresh_copy(inputs, side.device)
    side.wait()
    return ProbeReply()


def _give(side: Side, message: ProbeStep) -> ProbeReply:
    (outputs,) = map_pack(message.fds[0], message.manifest, writable=True, private=False)
    if outputs.device.type == side.device:
        torch.bitwise_not(side.taken, out=outputs)
    else:
        outputs.copy_(torch.bitwise_not(side.taken))
    side.wait()
    return ProbeReply()


def _read(side: Side, message: ProbeStep) -> ProbeReply:
    copies = [tensor.clone() for tensor in map_pack(message.fds[0], message.manifest)]
    result = copies[0].to(side.device)
    return ProbeReply(right=torch.equal(result, torch.bitwise_not(side.master)))
