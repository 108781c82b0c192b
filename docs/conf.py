"""The documentation site: `make docs` writes it to out/docs.

Pages are plain Markdown whose ```python blocks are run when the site is built, and the scripts of
`examples/`, which are its gallery. Both are notebooks to Jupytext: what a reader opens in Jupyter,
what is tested and what stands on the site are the same file.
"""

import hashlib
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
SCRATCH = ROOT / "build" / "docs"

sys.path[:0] = [str(HERE / "_ext"), str(ROOT / "src")]

import probode

project = "probode"
author = "The probode developers"
copyright = "The probode developers"
release = probode.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "gallery",
    "mathml",
    "measured",
    "notebooks",
]
exclude_patterns = ["_ext", "_static", "conf.py", "check_in_browser.py", "data", "figures/*.py"]

# --- Pages -----------------------------------------------------------------------------------
nb_custom_formats = {
    ".md": ["notebooks.read_page", {}],
    ".py": ["notebooks.read_script", {}],
}
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "smartquotes"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]

# --- Execution -------------------------------------------------------------------------------
# A failing block is a warning, and warnings are errors. Results are kept for as long as neither
# the blocks of a page nor the library have changed.
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_merge_streams = True
logging.getLogger("traitlets").setLevel(logging.WARNING)


def _library() -> str:
    found = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".py", ".hpp", ".cc"):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


library = _library()
_EXECUTED = SCRATCH / "executed"
nb_execution_cache_path = str(_EXECUTED / library)
for _old in _EXECUTED.glob("*"):
    if str(_old) != nb_execution_cache_path:
        shutil.rmtree(_old)

# How arrays and figures look. The kernels of the pages inherit these.
_PROFILE = SCRATCH / "ipython" / "profile_default"
_PROFILE.mkdir(parents=True, exist_ok=True)
(_PROFILE / "ipython_kernel_config.py").write_text(
    """c = get_config()
c.InteractiveShellApp.exec_lines = [
    "import numpy; numpy.set_printoptions(precision=5, threshold=20, edgeitems=2); del numpy"
]
c.InlineBackend.rc = {}
c.IPKernelApp.log_level = 50
"""
)
os.environ.setdefault("IPYTHONDIR", str(_PROFILE.parent))
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # bars of tqdm in notebooks

# --- Reference -------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
autoclass_content = "class"
napoleon_google_docstring = False
napoleon_attr_annotations = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
default_role = None

# --- Looks -----------------------------------------------------------------------------------
html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"probode {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
html_logo = "_static/logo.svg"
html_show_sourcelink = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
copybutton_exclude = ".linenos, .gp, .go"


def keep_colons(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Napoleon would take what stands before a colon for a type: not if the first line is empty."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")


def setup(app: Any) -> None:
    """Read all pages again when the library has changed; docstrings as they are written."""
    app.add_config_value("library", "", "env")
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
