"""For which sets of addresses a graph is kept."""

import ctypes
from collections.abc import Callable
from itertools import cycle, islice

import pytest

from stitch_planner.stitcher.testing import build_header_test

SOURCE = """
#include "stitch/cuda/seen_addresses.cuh"
using namespace stitch::cuda;

static SeenAddresses seen;

EXPORT void forget() { seen.clear(); }

// 0: the set is new. 1: it came once, and is prepared now. 2: it was prepared. 3: new, and another made room.
EXPORT int call(int64_t address) {
  const std::vector<void*> addresses{reinterpret_cast<void*>(address)};
  SeenAddresses::Entry* const entry = seen.find(addresses);
  if (entry == nullptr) return seen.remember(addresses) == nullptr ? 0 : 3;
  if (entry->prepared != nullptr) return 2;
  entry->prepared = &seen;
  return 1;
}
"""
MOST = 64


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_header_test(SOURCE, tmp_path_factory.mktemp("seen"))


@pytest.fixture
def call(library: ctypes.CDLL) -> Callable[[int], int]:
    library.forget()

    def look(address: int) -> int:
        found: int = library.call(ctypes.c_int64(address))
        return found

    return look


def test_what_came_twice_is_prepared_once(call: Callable[[int], int]) -> None:
    assert [call(address) for address in (1, 2, 1, 2, 1, 2)] == [0, 0, 1, 1, 2, 2]


def test_most_of_a_rotation_that_is_longer_than_the_table_stays_prepared(call: Callable[[int], int]) -> None:
    found = [call(address) for address in islice(cycle(range(1, MOST + 9)), 6 * (MOST + 8))]
    assert found[-(MOST + 8) :].count(2) == MOST


def test_a_stream_of_new_addresses_displaces_what_is_in_use_never_and_what_is_idle_at_last(
    call: Callable[[int], int],
) -> None:
    for address in [*range(1, MOST + 1)] * 2:
        call(address)
    stream = iter(range(1000, 10000))
    for _ in range(2000):
        assert call(next(stream)) in (0, 3)
        assert call(1) == 2
    assert call(2) != 2
