"""The examples run as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_fourteen():
    assert len(EXAMPLES) == 14


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_prints(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path), *(["--quick"] if "--quick" in path.read_text() else [])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,  # figures go to out/
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
