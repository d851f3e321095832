"""What the controller writes into a timed loop's pipe: counts of calls, and what is to be done between them.

A word below 2^63 is a count. One above is a *request* that nobody times: to renew the inputs that the next
call takes, or to bring the outputs of a slot, or of the latest calls, into our memory. Both sides
compute from a token alone which stretch of which draw an input was given. Needs no torch; used at both ends.
"""

import hashlib

STOP = 2**64 - 1
REQUEST = 1 << 63
RENEW, COLLECT, COLLECT_LATEST = 1, 2, 3
TOKEN_BITS = 48
_KIND_SHIFT = 56
_PAYLOAD = (1 << _KIND_SHIFT) - 1
# Elements of a stretch: little enough to leave an input where the ring put it, outside of every cache.
_LONGEST = 1 << 16
_SHARE = 4


def request(kind: int, payload: int) -> int:
    """The word that asks for `kind`.

    Its payload is a token (RENEW; 0: the slot's own draw), a slot (COLLECT) or a number (COLLECT_LATEST).
    """
    return REQUEST | kind << _KIND_SHIFT | payload


def is_request(word: int) -> bool:
    """Whether a word asks for something between calls."""
    return word != STOP and bool(word & REQUEST)


def parts(word: int) -> tuple[int, int]:
    """Kind and payload of a request."""
    return (word & ~REQUEST) >> _KIND_SHIFT, word & _PAYLOAD


def donor_of(slot: int, token: int, draws: int) -> int:
    """The draw that a stretch of the slot's inputs comes from: another than its own."""
    return (slot + 1 + _scattered(token, "donor") % max(1, draws - 1)) % draws


def stretch(token: int, index: int, size: int) -> tuple[int, int]:
    """Begin and end of what changes in tensor `index` with `size` elements in memory."""
    length = min(size, _LONGEST, -(-size // _SHARE))
    begin = _scattered(token, str(index)) % (size - length + 1)
    return begin, begin + length


def _scattered(token: int, purpose: str) -> int:
    digest = hashlib.blake2b(f"{token} {purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
