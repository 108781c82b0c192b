"""Pages as notebooks: scripts of `examples/` read as pages, pages with code to download."""

import shutil
from pathlib import Path
from typing import Any

import jupytext
from nbformat import NotebookNode
from sphinx.application import Sphinx

FOLDER = "_notebooks"


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def read_page(text: str) -> NotebookNode:
    """A page of Markdown as a notebook: its Python blocks are the cells of code."""
    return _in_python(jupytext.reads(text, fmt="md:markdown"))


def read_script(text: str) -> NotebookNode:
    """A script in cells (``# %%``) as a notebook."""
    return _in_python(jupytext.reads(text, fmt="py:percent"))


def _in_python(notebook: NotebookNode) -> NotebookNode:
    notebook.metadata.update(
        kernelspec=KERNEL, language_info={"name": "python", "pygments_lexer": "ipython3"}
    )
    return notebook


def _executed(app: Sphinx, page: str) -> Path:
    """Where MyST-NB has put a page together with what its code has given."""
    return Path(app.outdir).parent / "jupyter_execute" / f"{page}.ipynb"


def _has_code(path: Path) -> bool:
    return path.exists() and any(
        cell.cell_type == "code" for cell in jupytext.read(path, fmt="ipynb").cells
    )


def add_link(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Below a page with code: the same as a notebook."""
    if doctree is None or not _has_code(_executed(app, page)):
        return
    up = "../" * page.count("/")
    link = f'<a href="{up}{FOLDER}/{page}.ipynb" download>This page as a notebook</a>'
    context["body"] += f'<p class="notebook-link">{link}</p>'


def copy_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """The notebooks that pages link to."""
    if exception is not None or app.builder.name != "html":
        return
    for page in app.env.found_docs:
        source, target = _executed(app, page), Path(app.outdir) / FOLDER / f"{page}.ipynb"
        if _has_code(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("html-page-context", add_link)
    app.connect("build-finished", copy_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
