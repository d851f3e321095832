"""The channel between two processes, where the machine has no room for what it brings."""

import os
import resource
import socket

import pytest

from stitch_tools.protocol.wire import Channel, Frame, ProtocolError


def test_descriptors_that_this_process_may_not_open_are_its_own_trouble_not_the_peer_s() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ours, theirs:
        Channel(theirs).send(Frame({"ok": True}, fds=(ours.fileno(), theirs.fileno())))
        free = os.dup(ours.fileno())
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                Channel(ours).receive(timeout_s=10)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_more_descriptors_than_a_frame_may_bring_are_the_peer_s_fault() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        socket.send_fds(theirs, [b"STW1"], [ours.fileno()] * 100)
        with pytest.raises(ProtocolError, match="too many descriptors"):
            Channel(ours).receive(timeout_s=10)
