"""``{gallery}``: a card for each script of `examples/`, with its last figure.

The pictures are those that the scripts have drawn while the site was built: nothing is stored.
"""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.logging import getLogger

LOGGER = getLogger(__name__)


class cards(nodes.General, nodes.Element):
    """Holds the place of the cards until all pages are read."""


class Gallery(SphinxDirective):
    """``{gallery}`` with the names of scripts as its content, one in each line."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [cards(pages=[f"examples/{name.strip()}" for name in self.content if name.strip()])]


def fill(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Put pictures, titles and first sentences into the places held for them."""
    for place in list(doctree.findall(cards)):
        grid = nodes.container(classes=["gallery"])
        for other in place["pages"]:
            if other in app.env.titles:
                grid += _card(app, page, other)
            else:
                LOGGER.warning("the gallery has no page %s", other, location=page)
        place.replace_self(grid)


def _card(app: Sphinx, page: str, other: str) -> nodes.Node:
    content = app.env.get_doctree(other)
    link = app.builder.get_relative_uri(page, other)
    card = nodes.container(classes=["gallery-card"])
    images = list(content.findall(nodes.image))
    if images:
        picture = images[-1].deepcopy()
        picture.attributes.update(alt=app.env.titles[other].astext(), classes=["gallery-picture"])
        for key in ("width", "height"):
            picture.attributes.pop(key, None)
        card += nodes.paragraph("", "", nodes.reference("", "", picture, refuri=link))
    title = app.env.titles[other].astext()
    card += nodes.paragraph(
        "", "", nodes.reference("", title, refuri=link), classes=["gallery-title"]
    )
    first = next(content.findall(nodes.paragraph), None)
    if first is not None:
        card += nodes.paragraph("", first.astext().split(". ")[0].rstrip(".") + ".")
    return card


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_node(cards)
    app.add_directive("gallery", Gallery)
    app.connect("doctree-resolved", fill)
    app.connect("env-updated", lambda app, env: {"gallery"} & env.found_docs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
