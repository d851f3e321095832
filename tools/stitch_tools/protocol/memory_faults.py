"""Which faults say that memory was missing. Needs no torch; used at both ends."""

_WORDS = (
    "allocate memory",
    "bad_alloc",
    # The status of a program and the kind of a fault; what is said of a process that was ended for it.
    "out_of_memory",
    "needed more memory than it may have",
    # The runtime, the driver and the libraries of a GPU, each in its own words.
    "out of memory",
    "cudaErrorMemoryAllocation",
    "STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was missing, of whatever device."""
    named = any(kind.__name__ in ("MemoryError", "OutOfMemoryError") for kind in type(error).__mro__)
    return named or says_out_of_memory(str(error))


def says_out_of_memory(message: str) -> bool:
    """Whether a message has the words of a failed allocation."""
    return any(word in message for word in _WORDS)
