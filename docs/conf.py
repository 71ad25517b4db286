"""The site, `make docs`: pages of this folder, notebooks that are executed, the library's own docstrings."""

import hashlib
import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS / "_ext"), str(ROOT)]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

import tangent_jax  # noqa: E402

project = "tangent_jax"
author = "the authors of tangent_jax"
version = release = tangent_jax.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb", "reference", "commands", "files"]
# `[ab]**` in index.md: benchmarks, and accelerators/DEVICE where `make accelerator` wrote one. design.md is for
# contributors, as the files at the top of the repository are.
exclude_patterns = ["_ext", "design.md"]
nitpicky = True
# Types of annotations that have no page here: those of other libraries, and our own that are not public.
nitpick_ignore_regex = [("py:.*", r"(?!tangent_jax\.\w+$).*")]

default_role = "literal"  # `code` in docstrings
napoleon_numpy_docstring = False
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style"), "Guarantees", "Edge cases", "Source"]
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

myst_heading_anchors = 4
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 900  # seconds a cell, on a busy machine
# What a notebook printed stands for as long as the library that printed it.
LIBRARY = b"".join(path.read_bytes() for path in sorted((ROOT / "tangent_jax").rglob("*.py")))
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build/notebooks" / hashlib.sha256(LIBRARY).hexdigest()[:16])
nb_ipywidgets_js = {}
nb_merge_streams = True

smartquotes = False
highlight_language = "text"

html_theme = "sphinx_book_theme"
html_title = f"tangent_jax {version}"
html_short_title = "Linearized Vision Transformers in JAX: fine-tune, merge, remove fine-tuning data, train privately."
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sourcelink_suffix = ""
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "navbar_persistent": [],  # the search is in the side bar
}
