"""Tensors there and back between two processes on one GPU, both ways: what is tried out, and what is timed.

One process is the judge, the other the program's; both serve the same requests, each asked for its own part.
"""

from collections.abc import Callable

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.serving import Handler, Reply, Request, serve_ops
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


def handlers(side: Side) -> dict[str, Handler]:
    """Handlers by operation. `refused` in an answer is the driver's reason against memory for two."""
    own = {"start": _start, "send": _send, "poison": _poison, "take": _take, "give": _give, "read": _read}

    def bound(step: Callable[[Side, Request], Reply]) -> Handler:
        def answer(request: Request) -> Reply:
            try:
                return step(side, request)
            except DriverError as error:
                return Reply({"refused": str(error)})

        return answer

    return {name: bound(step) for name, step in own.items()}


def _start(side: Side, request: Request) -> Reply:
    """Come into being on the device."""
    if side.device == "cuda":
        if not torch.cuda.is_available():
            return Reply({"refused": "torch sees no CUDA device here"})
        if request.message["on_device"]:
            exported_memory.require_support(torch.cuda.current_device())
        side.wait()
    return Reply()


def _send(side: Side, request: Request) -> Reply:
    """The judge's part: inputs for the program, from a master of `nbytes` random bytes that stays."""
    nbytes = int(request.message["nbytes"])
    if side.master.numel() != nbytes:
        side.master = torch.randint(256, (nbytes,), dtype=torch.uint8, device=side.device)
    pack = export_pack if request.message["on_device"] else write_pack
    fd, manifest = pack([("x", side.master)])
    return Reply({"manifest": manifest}, fds=(fd,))


def _poison(side: Side, request: Request) -> Reply:
    """The judge's part: memory for the program's outputs, that holds what it does not compute."""
    manifest = request.message["manifest"]
    nbytes = memory.end_of(manifest)
    fd = create_on_device(nbytes) if request.message["on_device"] else memory.create(nbytes)
    (outputs,) = map_pack(fd, manifest, writable=True, private=False)
    outputs.fill_(_POISON)
    side.wait()
    return Reply(fds=(fd,))


def _take(side: Side, request: Request) -> Reply:
    """The program's part: a copy of the inputs, in its own memory."""
    (inputs,) = map_pack(request.fds[0], request.message["manifest"], writable=True)
    side.taken = fresh_copy(inputs, side.device)
    side.wait()
    return Reply()


def _give(side: Side, request: Request) -> Reply:
    """The program's part: every bit turned round, straight into the outputs where it can reach them."""
    (outputs,) = map_pack(request.fds[0], request.message["manifest"], writable=True, private=False)
    if outputs.device.type == side.device:
        torch.bitwise_not(side.taken, out=outputs)
    else:
        outputs.copy_(torch.bitwise_not(side.taken))
    side.wait()
    return Reply()


def _read(side: Side, request: Request) -> Reply:
    """The judge's part: whether a copy of the outputs is what the program had to compute."""
    copies = [tensor.clone() for tensor in map_pack(request.fds[0], request.message["manifest"])]
    found = copies[0].to(side.device)
    return Reply({"right": torch.equal(found, torch.bitwise_not(side.master))})
