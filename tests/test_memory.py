"""Memory for rows is used again, and never while something still looks at it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probode
from probode.engines.native import memory


@pytest.fixture(autouse=True)
def nothing_waits():
    memory.release()
    yield
    memory.release()


def test_memory_that_nobody_looks_at_is_used_again():
    array = memory.take(10_000)
    address = array.ctypes.data
    del array
    assert memory.take(9_000).ctypes.data == address


@given(st.lists(st.tuples(st.integers(1, 9_000), st.booleans()), max_size=20))
def test_what_a_view_shows_is_not_changed_by_later_arrays(wanted):
    views = []
    for number, (count, kept) in enumerate(wanted):
        array = memory.take(count)
        array[:] = number
        if kept:
            views.append((number, array.reshape(1, -1)[:, ::2]))
        del array
    assert all(np.all(view == number) for number, view in views)


def test_a_view_keeps_its_memory_when_the_array_is_gone():
    array = memory.take(5_000)
    view = array[10:20].reshape(2, 5).T
    del array
    assert memory.waiting_bytes() == 0
    del view
    assert memory.waiting_bytes() > 0


def test_only_so_much_waits(monkeypatch):
    monkeypatch.setattr(memory, "KEPT_BYTES", 3 * 8 * memory.SMALLEST)
    arrays = [memory.take(10) for _ in range(5)]
    arrays.clear()
    assert memory.waiting_bytes() == memory.KEPT_BYTES


def test_what_is_too_large_is_not_kept(monkeypatch):
    monkeypatch.setattr(memory, "LARGEST", 2**13)
    array = memory.take(2**13 + 1)
    assert array.size == 2**13 + 1
    del array
    assert memory.waiting_bytes() == 0


@pytest.mark.parametrize("steps", [300, 3000])
def test_a_posterior_stays_what_it_is_while_others_are_solved(steps):
    def solve(y0):
        return probode.solve(lambda t, y: -y, (0.0, 1.0), [y0], step=1.0 / steps)

    first = solve(1.0)
    mean, std = first.mean.copy(), first.std.copy()
    at = first.mean[steps // 2 :]
    for y0 in (2.0, 3.0):
        solve(y0)
    assert np.array_equal(first.mean, mean)
    assert np.array_equal(first.std, std)
    del first
    solve(4.0)
    assert np.array_equal(at, mean[steps // 2 :])
