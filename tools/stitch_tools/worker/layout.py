"""Names in the memory of outputs, agreed on by reference server, worker and controller. Needs no torch."""

GUARD = "\x00guard"
"""Bytes between two outputs that nobody may write to. No key of a dict of outputs is spelled like this."""

BUFFER = "buffer:"
"""Prefix of an updated buffer's name, after the outputs."""

INPUT = "input:"
"""Prefix of an input that forward writes to, after the buffers. It stays in the inputs' own memory."""
