"""How the programs of the tests are compiled.

Most of the time of the tests is that of LLVM, which optimises thousands of programs that run once.
So that is left out, unless a file has ``pytestmark = pytest.mark.optimised``: those that judge
numbers to rounding (against the oracle, closed forms, other ways to compute the same) are compiled
as for users. What is traced, lowered and called is the same in both. With
``JAX_DISABLE_MOST_OPTIMIZATIONS=0`` in the environment everything is compiled as for users.
"""

import os
import signal

# In the environment, and before JAX reads it: for the processes that tests start, too.
SWITCH = "JAX_DISABLE_MOST_OPTIMIZATIONS"
os.environ.setdefault(SWITCH, "1")
# What is counted and compared here is compiled here (tests/test_first_calls.py has the cache).
os.environ.setdefault("PROBODE_CACHE", "0")

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _optimisation(request):
    optimised = request.node.get_closest_marker("optimised") is not None
    if optimised:
        jax.config.update(SWITCH.lower(), False)
        jax.clear_caches()  # another file may have compiled the same programs, without
    yield
    if optimised:
        jax.config.update(SWITCH.lower(), os.environ[SWITCH] == "1")


@pytest.fixture
def ctrl_c():
    """Python's own handler of Ctrl-C: what a script starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def jax_as_it_comes():
    """For tests about JAX as it comes: 32 bits, unless one asks for more."""
    assert not jax.config.jax_enable_x64
