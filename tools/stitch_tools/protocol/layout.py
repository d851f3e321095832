"""Names and filling of the memory of outputs, the same for judge, worker and controller. Needs no torch."""

GUARD = "\x00guard"
"""Bytes between two outputs that nobody may write to. No key of a dict of outputs is spelled like this."""

GUARD_BYTE = 0xA5
"""What lies beside outputs is full of it."""

BUFFER = "buffer:"
"""Prefix of an updated buffer's name, after the outputs."""

INPUT = "input:"
"""Prefix of an input that forward writes to, after the buffers. It stays in the inputs' own memory."""


def untouched_byte(dtype: str) -> int:
    """What an output of this type is full of before a call: in floats NaN, in others what few compute.

    An 8-bit float has one NaN of each sign, which honest programs write, too.
    """
    has_own_nan = dtype.startswith(("float", "bfloat", "complex")) and not dtype.startswith("float8")
    return 0xFF if has_own_nan else GUARD_BYTE
