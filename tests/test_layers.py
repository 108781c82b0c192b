"""Which package may import which: the order of CONTRIBUTING.md, read from the imports."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import probode

ROOT = Path(probode.__file__).parent
LAYERS = (
    *("base", "problems", "programs", "model", "filter", "engines", "global_error", "posterior"),
    *("solve", "inference", "ensemble", "ivp", "cli"),
)
"""What is at the top of the package, each knowing only itself and those before it."""
ARROWS_UP = {
    ("posterior.export", ""): "files tell which version of the library has written them",
    ("cli.commands", ""): "so does the command line",
}
"""Imports of something above (``""``: the library itself), and why."""


@cache
def modules():
    """All modules by their names inside the package; ``""`` is the package itself."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix("__init__").removesuffix(".")] = path
    return found


def layer(name):
    top = name.partition(".")[0]
    return LAYERS.index(top) if top in LAYERS else len(LAYERS)


@cache
def imports(name):
    """What a module imports of the library: ``(target, later)`` for each.

    ``later``: in a function, or for type checkers only.
    """
    found = set()

    def look(node, later):
        for child in ast.iter_child_nodes(node):
            deferred = later or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            deferred |= isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if isinstance(child, ast.Import):
                targets = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{name}: imports are written out in full"
                targets = [f"{child.module}.{alias.name}" for alias in child.names]
            else:
                targets = []
            found.update((_module(x), deferred) for x in targets if re.match(r"probode\b", x))
            look(child, deferred)

    look(ast.parse(modules()[name].read_text()), False)
    return found


def _module(target):
    """The module that an imported thing is, or comes from."""
    inside = target.removeprefix("probode").removeprefix(".")
    while inside not in modules():
        inside = inside.rpartition(".")[0]
    return inside


def test_a_dozen_names_or_so_at_the_top():
    places = (path for path in ROOT.iterdir() if path.suffix == ".py" or any(path.glob("*.py")))
    tops = {path.stem for path in places if not path.stem.startswith("_")}
    assert tops == set(LAYERS)
    assert len(LAYERS) <= 13


@pytest.mark.parametrize("package", LAYERS)
def test_no_arrow_goes_up(package):
    inside = [name for name in modules() if name.partition(".")[0] == package]
    assert inside
    wrong = [
        f"{name} imports {target or 'the package itself'}"
        for name in inside
        for target, _ in imports(name)
        if layer(target) > layer(name) and (name, target) not in ARROWS_UP
    ]
    assert not wrong, "\n".join(wrong)


def test_no_exception_is_left_over():
    for name, target in ARROWS_UP:
        assert target in {found for found, _ in imports(name)}, name


def test_no_module_imports_itself_on_the_way():
    graph = {
        name: {target for target, later in imports(name) if not later and target != name}
        for name in modules()
    }
    tuple(TopologicalSorter(graph).static_order())


def test_the_experiments_are_outside():
    """Only the command line knows them, and only when it is asked for them."""
    texts = {name: path.read_text() for name, path in modules().items()}
    at_once = r"^(from|import) experiments\b"
    assert not [name for name in texts if re.search(at_once, texts[name], re.MULTILINE)]
    assert [name for name in texts if re.search(r"(from|import) experiments\b", texts[name])] == [
        "cli.paper"
    ]


def test_contributing_has_them_in_order():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    block = text.partition("## Layers")[2].split("```")[1]
    assert tuple(re.findall(r"^(\w+)[/ ]", block, re.MULTILINE)) == LAYERS
