"""Look at the built documentation in a browser, page by page: `make docs-check`.

Each page is loaded as on a desk (1280 points wide) and on a phone (390). Checked: pages load
without errors of scripts or missing files, figures are there, links lead somewhere (their anchors,
too), nothing but tables and code scrolls sideways, and the search finds what it should. Links to
other sites are counted, not followed. Chromium or Chrome has to be installed; without one nothing
is checked, and that is said.
"""

import argparse
import functools
import http.server
import shutil
import sys
import threading
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = {"desk": 1280, "phone": 390}
SEARCHES = {"smoothing": "how/smoothing", "SparseEK1": "large", "solve_ensemble": "ensembles"}
"""Words, and a page that each of them must find."""

WIDE = """() => {
    const width = document.documentElement.clientWidth;
    if (document.scrollingElement.scrollWidth <= width + 1) return [];
    const scrolls = (one) => {
        for (let up = one; up && up !== document.body; up = up.parentElement)
            if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)) return true;
        return false;
    };
    const wide = [...document.querySelectorAll('article *')].filter(
        (one) => one.getBoundingClientRect().right > width + 1 && !scrolls(one.parentElement));
    return ['page', ...wide.slice(0, 3).map((one) => one.tagName + ' ' + one.className)];
}"""
FIGURES = """() => [...document.images].filter((one) => !one.complete || one.naturalWidth === 0)
    .map((one) => one.getAttribute('src'))"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def served(folder: Path) -> tuple[http.server.ThreadingHTTPServer, str]:
    """A server of the folder on some free port, and its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}/"


class Check:
    """What was found, page by page."""

    def __init__(self, folder: Path, address: str, pictures: Path | None) -> None:
        self.folder, self.address, self.pictures = folder, address, pictures
        self.problems: dict[str, list[str]] = defaultdict(list)
        self.links: dict[str, set[str]] = {}
        self.anchors: dict[str, set[str]] = {}
        self.elsewhere: set[str] = set()

    def page(self, tab, name: str, kind: str) -> None:
        """Load one page, and look at it."""
        found = self.problems[f"{name} ({kind})"]
        tab.goto(self.address + name, wait_until="load")
        tab.evaluate("() => document.querySelectorAll('img[loading=lazy]').forEach((one) => {"
                     " one.loading = 'eager'; })")  # fmt: skip
        tab.wait_for_load_state("networkidle")
        found += [f"figure does not load: {one}" for one in tab.evaluate(FIGURES)]
        found += [f"wider than the screen: {one}" for one in tab.evaluate(WIDE)]
        self.links[name] = set(tab.eval_on_selector_all("a[href]", "all => all.map(a => a.href)"))
        self.anchors[name] = set(tab.eval_on_selector_all("[id]", "all => all.map(x => x.id)"))
        if self.pictures is not None:
            target = self.pictures / kind / f"{name.removesuffix('.html').replace('/', '.')}.png"
            tab.screenshot(path=target, full_page=True)

    def follow(self) -> None:
        """Whether what links name is there."""
        for name, links in self.links.items():
            for link in links:
                if not link.startswith(self.address):
                    if urlsplit(link).scheme in ("http", "https"):
                        self.elsewhere.add(link)
                    continue
                page, anchor = urldefrag(link.removeprefix(self.address))
                page = unquote(page) or "index.html"
                if not (self.folder / page).is_file():
                    self.problems[name].append(f"link to a missing page: {page}")
                elif anchor and page in self.anchors and unquote(anchor) not in self.anchors[page]:
                    self.problems[name].append(f"link to a missing place: {page}#{anchor}")

    def search(self, tab) -> None:
        """Whether the search finds pages that it must."""
        for words, page in SEARCHES.items():
            tab.goto(self.address)
            tab.fill("input[name=q]", words)
            tab.press("input[name=q]", "Enter")
            try:
                tab.wait_for_selector("#search-results li a", timeout=10_000)
                tab.wait_for_selector(f"#search-results a[href*='{page}.html']", timeout=10_000)
            except Exception:
                self.problems["search.html"].append(f"{words!r} does not find {page}")


def pages_of(folder: Path) -> list[str]:
    """All pages that a reader may come to."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    return sorted(name for name in found if not name.startswith(("_static", "_modules")))


def listening(tab) -> list[str]:
    """What the browser complains about, as it comes."""
    told: list[str] = []

    def console(message) -> None:
        if message.type == "error":
            told.append(f"console: {message.text}")

    def answered(response) -> None:
        if response.status >= 400:
            told.append(f"missing: {response.url}")

    tab.on("console", console)
    tab.on("response", answered)
    tab.on("pageerror", lambda error: told.append(f"script: {error}"))
    tab.on("requestfailed", lambda one: told.append(f"does not load: {one.url}"))
    return told


def main() -> int:
    """Check all pages; 1 if there is anything to complain about."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the built pages are")
    parser.add_argument("--pictures", type=Path, help="where to put a picture of every page")
    parser.add_argument("--only", help="only pages with this in their name; links are not followed")
    options = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"NOT CHECKED: no browser, looked for {', '.join(BROWSERS)} (apt install chromium)")
        return 0
    from playwright.sync_api import sync_playwright

    names = [name for name in pages_of(options.folder) if (options.only or "") in name]
    server, address = served(options.folder)
    check = Check(options.folder, address, options.pictures)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for kind, width in WIDTHS.items():
            if options.pictures is not None:
                (options.pictures / kind).mkdir(parents=True, exist_ok=True)
            tab = running.new_page(viewport={"width": width, "height": 900})
            told = listening(tab)
            for name in names:
                check.page(tab, name, kind)
                check.problems[f"{name} ({kind})"] += told
                told.clear()
            if options.only is None:
                check.search(tab)
            tab.close()
        running.close()
    server.shutdown()
    if options.only is None:
        check.follow()
    bad = {name: found for name, found in check.problems.items() if found}
    for name, found in bad.items():
        print(name, *sorted(set(found)), sep="\n    ")
    print(
        f"{len(names)} pages at {len(WIDTHS)} widths, {sum(map(len, check.links.values()))} links, "
        f"{len(check.elsewhere)} to other sites (not followed): "
        + (f"{len(bad)} with problems" if bad else "nothing to complain about")
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
