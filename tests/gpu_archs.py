"""GPUs that written programs are compiled for: one in each run of the suite, the others where asked for."""

import pytest

each_arch = pytest.mark.parametrize(
    "archs",
    [("sm_90",), pytest.param(("sm_80", "sm_100"), marks=pytest.mark.exhaustive)],
    ids=["hopper", "others"],
)
