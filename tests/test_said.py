"""What was said once is not said again."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from probode.base import said


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch):
    monkeypatch.setattr(said, "_cases", {})


def test_a_case_comes_up_for_the_first_time_once():
    assert [said.first_time(*case) for case in ("a", "b", "a")] == [True, True, False]


def test_one_of_many_threads_is_told_that_it_is_the_first():
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda _: said.first_time("case", 1), range(200)))
    assert sum(told) == 1


def test_the_memory_is_bounded_and_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr(said, "_MOST", 3)
    for case in range(5):
        assert said.first_time(case)
    assert len(said._cases) == 3
    assert not said.first_time(4) and said.first_time(0)


def test_closures_of_one_line_are_one_function():
    functions = [lambda t, y, k=k: k * y for k in range(2)]
    assert said.code_of(functions[0]) is said.code_of(functions[1])
