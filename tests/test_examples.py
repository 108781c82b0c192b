"""The examples run as they are, and all of them are in the gallery."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_the_gallery_has_all_of_them():
    page = (ROOT / "docs" / "gallery.md").read_text()
    blocks = re.findall(r"^```\{gallery\}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert sorted(name for block in blocks for name in block.split()) == [
        path.stem for path in EXAMPLES
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_notebook_with_a_title_and_a_figure(path):
    """In cells, as Jupytext reads them: the first is text, and one draws something."""
    text = path.read_text()
    assert re.match(r"# %% \[markdown\]\n# # .+\n#\n# \S", text)
    assert "\n# %%\n" in text and "plt.show()" in text
    assert not re.search(r"__main__|sys\.argv|matplotlib\.use", text)
    ast.parse(text)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_prints(path, tmp_path):
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MPLBACKEND": "agg"},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
