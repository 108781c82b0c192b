"""The examples of docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

import probode

SOURCE = Path(__file__).parents[1] / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>>" in path.read_text()
)


REFERENCE = "".join(
    path.read_text() for path in sorted((SOURCE.parent / "docs" / "api").glob("*.md"))
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("name", dir(probode))
def test_every_public_name_is_in_the_reference_with_an_example(name):
    if name.startswith("__"):
        return
    thing = getattr(probode, name)
    assert f":: {name}\n" in REFERENCE.replace(":: probode.", ":: ").replace("()\n", "\n")
    if callable(thing):
        assert ">>>" in thing.__doc__
