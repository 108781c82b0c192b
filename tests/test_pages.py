"""Python in the pages of docs/ runs, from the top to the bottom of a page."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["fitting.md", "large.md", "hybrid.md", "long_runs.md"])
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("numpyro")
    pytest.importorskip("blackjax")
    text = (DOCS / page).read_text()
    names: dict = {}
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        code = compile("\n" * line + match[1], page, "exec")  # errors have the line of the page
        exec(code, names)
