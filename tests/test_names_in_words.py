"""Files and objects that comments, docstrings and pages name are there."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
SOURCES = [
    path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".hpp", ".cc", ".md")
]
EXAMPLES = {"path/to/file.py", "model.py", "table.md", "command.py"}
"""Names that stand for a user's own."""


def known_files():
    folders = ("src", "docs", "tests", "benchmarks", "examples")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    return {"/" + path.relative_to(ROOT).as_posix() for path in [*found, *ROOT.glob("*.*")]}


def test_files_that_are_named_exist():
    known = known_files()
    missing = [
        (path.name, name)
        for path in [*PAGES, *SOURCES]
        for name in re.findall(r"[\w/.-]*\w\.(?:py|hpp|cc|md)\b", path.read_text())
        for name in [name.replace("../", "")]
        if name not in EXAMPLES and not any(file.endswith("/" + name) for file in known)
    ]
    assert missing == []


def references():
    """``:mod:``, ``:class:``, ... with a full name, in all docstrings."""
    text = "\n".join(path.read_text() for path in SOURCES if path.suffix == ".py")
    return sorted(set(re.findall(r":(?:mod|class|func|meth|attr):`~?(probode[\w.]*)`", text)))


def _found(name):
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                return part in getattr(value, "__annotations__", {})
            value = getattr(value, part)
        return True
    return False


@pytest.mark.parametrize("name", references())
def test_objects_that_are_referred_to_exist(name):
    assert _found(name)
