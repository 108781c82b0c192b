"""Wheels: one for every Python where the kernels are built, and a pure one where they are not."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from probode.engines.abreast import source

hatch_build = pytest.importorskip("hatch_build", reason="needs hatchling")
ROOT = Path(__file__).parents[1]
KERNELS = "probode/engines/native/_kernels.so"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of what a wheel is made from: kernels are built into, and removed from, the tree."""
    place = tmp_path_factory.mktemp("tree")
    for name in ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, place)
    unwanted = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src", place / "src", ignore=unwanted)
    return place


def build(tree, folder, **environment):
    """The path of a wheel, built with what is installed."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "-w", str(folder), str(tree)],
        env=os.environ | environment,
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_tag_of_kernels_names_a_platform_and_no_version_of_python():
    python, abi, platform = hatch_build.tag().split("-")
    assert (python, abi) == ("py3", "none")
    assert platform == hatch_build.machine().replace("-", "_").replace(".", "_")


@pytest.mark.parametrize(
    ("python", "wheel"),
    [
        ("11.0-universal2", "11_0_arm64"),
        ("10.9-universal2", "11_0_arm64"),  # pip knows no system before 11 for this processor
        ("14.0-universal2", "14_0_arm64"),
        ("14.0-arm64", "14_0_arm64"),
        ("10.9-x86_64", "10_9_x86_64"),
    ],
)
def test_a_python_for_two_processors_builds_for_its_own(monkeypatch, python, wheel):
    monkeypatch.setattr(sysconfig, "get_platform", lambda: f"macosx-{python}")
    monkeypatch.setattr(hatch_build.platform, "machine", lambda: "arm64")
    assert hatch_build.tag() == f"py3-none-macosx_{wheel}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{"PROBODE_BUILD_NATIVE": "0"}, {"CXX": "no-such-compiler"}],
    ids=["not wanted", "no compiler"],
)
def test_without_kernels_the_wheel_is_pure(tmp_path, tree, environment):
    wheel = build(tree, tmp_path, **environment)
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.endswith("py3-none-any.whl")
    assert KERNELS not in names
    # Programs for GPUs are compiled from these.
    assert {f"probode/engines/native/src/abreast/{name}" for name in source.HEADERS} <= {*names}


@pytest.fixture(scope="module")
def installed(tmp_path_factory, tree):
    """A wheel with kernels, unpacked: a folder that has none of the sources of the kernels."""
    place = tmp_path_factory.mktemp("installed")
    wheel = build(tree, tmp_path_factory.mktemp("wheels"))
    assert wheel.name.endswith(f"{hatch_build.tag()}.whl")
    zipfile.ZipFile(wheel).extractall(place)
    assert not list(place.rglob("*.cc"))
    return place


def run(code, folder, place):
    """What Python prints in a folder, with the library of ``place``."""
    environment = os.environ | {"PYTHONPATH": str(place), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_brings_its_kernels(tmp_path, installed):
    code = (
        "import probode; from probode.engines.native.library import instruction_set;"
        "r = probode.solve_ivp(lambda t, y: -y, (0, 1), [1.0]);"
        "print(probode.__file__, instruction_set(), r.success)"
    )
    file, kernels, success = run(code, tmp_path, installed).split()
    assert file.startswith(str(installed)) and kernels != "None" and success == "True"


@pytest.mark.slow
def test_the_examples_of_the_readme_run_on_a_wheel(tmp_path, installed):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    run("\n".join(blocks), tmp_path, installed)
