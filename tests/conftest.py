"""Shared set-up: tests of one file (or of one named group) run in one worker.

Compiled solvers live in a process, so tests that use the same ones should meet there.
"""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
