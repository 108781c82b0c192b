"""Tables of what was measured, from `docs/data/NAME.csv`: ``{measured} NAME``.

A file begins with lines ``# key: value``: ``command`` and ``commit`` are required (or ``entered``,
the commit with which older numbers were written down), ``machine`` and ``note`` are not. They
become the line below the table, so that no number stands there without them.
"""

import csv
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SHORT = 12
"""Cells of up to so many characters are not broken."""


def read(path: Path) -> tuple[dict[str, str], list[list[str]]]:
    """What is said of a table, and its rows; the first one is the head."""
    about: dict[str, str] = {}
    lines = path.read_text().splitlines()
    while lines and lines[0].startswith("#"):
        key, _, value = lines.pop(0).lstrip("# ").partition(":")
        about[key.strip()] = value.strip()
    if not about.get("command") or not (about.get("commit") or about.get("entered")):
        raise ValueError(f"{path.name}: a table of measurements says its command and commit")
    rows = list(csv.reader(lines))
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError(f"{path.name}: rows of different lengths")
    return about, rows


class Measured(SphinxDirective):
    """``{measured} NAME``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir) / "data" / f"{self.arguments[0]}.csv"
        self.env.note_dependency(str(path))
        about, (head, *rows) = read(path)
        for row, before in reversed(list(zip(rows[1:], rows, strict=False))):
            if row[0] == before[0]:
                row[0] = ""  # said once
        return [self._table(head, rows), self._below(about)]

    def _table(self, head: list[str], rows: list[list[str]]) -> nodes.Node:
        group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
        group += nodes.thead("", self._row(head))
        group += nodes.tbody("", *(self._row(row) for row in rows))
        return nodes.table("", group, classes=["measured"])

    def _row(self, cells: list[str]) -> nodes.Node:
        row = nodes.row()
        for cell in cells:
            entry = nodes.entry(classes=["short"] if len(cell) <= SHORT else [])
            entry += nodes.paragraph("", "", *self._inline(cell))
            row += entry
        return row

    def _inline(self, text: str) -> list[nodes.Node]:
        """Plain text, with `code` and **strong** in it."""
        found: list[nodes.Node] = []
        for k, part in enumerate(text.split("`")):
            if k % 2:
                found.append(nodes.literal(part, part))
                continue
            for j, piece in enumerate(part.split("**")):
                if piece:
                    found.append(nodes.strong("", piece) if j % 2 else nodes.Text(piece))
        return found

    def _below(self, about: dict[str, str]) -> nodes.Node:
        line = nodes.paragraph(classes=["provenance"])
        known = "commit" if "commit" in about else "entered"
        words = ", commit " if known == "commit" else ", written down with commit "
        line += [nodes.literal(about["command"], about["command"]), nodes.Text(words)]
        line += nodes.literal(about[known], about[known])
        for key in ("machine", "note"):
            if key in about:
                line += [nodes.Text(", " if key == "machine" else ". "), *self._inline(about[key])]
        line += nodes.Text(".")
        return line


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
