"""Python in README.md runs, from the top to the bottom. (That of docs/ is run by make docs.)

And the reference has all that is public.
"""

import re
from pathlib import Path

import probode

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


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


def test_the_reference_has_every_public_name():
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    told = re.findall(
        r"^.. auto(?:class|function|module):: (?:probode\.)?(\w+)$", pages, re.MULTILINE
    )
    assert set(probode.__all__) <= set(told)
    assert len(told) == len(set(told))
