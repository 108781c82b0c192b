"""Python in README.md runs, from the top to the bottom. (That of docs/ is run by make docs.)"""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_blocks_of_the_readme_run(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    text = README.read_text()
    names: dict = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    for match in blocks:
        line = text.count("\n", 0, match.start()) + 1
        exec(compile("\n" * line + match[1], "README.md", "exec"), names)  # errors have their line
    assert len(blocks) == 2


def test_the_readme_fits_on_a_screen_and_a_half():
    assert len(README.read_text().splitlines()) <= 100
