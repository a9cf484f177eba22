"""Settings of the site that `make docs` builds of these pages and of all docstrings.

Sphinx with MyST builds the site. Unlike MkDocs, Sphinx reads docstrings without importing
TensorFlow, searches pages and docstrings together, and has several maintainers.
"""

import re
from typing import Any

project = "mtl"
copyright = "the authors of mtl"
extensions = ["myst_parser", "autoapi.extension", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
html_title = "mtl"
html_show_sourcelink = False
# At 75%, a docstring's summary line of up to 94 characters fits between furo's left and right menu.
html_theme_options = {"light_css_variables": {"code-font-size": "75%"}}
# Removed lines of a change are red in these styles, and added ones green.
pygments_style = "default"
pygments_dark_style = "monokai"
# Members of classes in the menus of all pages would take most of the time of a build.
toc_object_entries = False
exclude_patterns = ["badges"]
myst_heading_anchors = 4
# Examples hold shell sessions, gin and shortened Python, which no highlighter parses whole.
highlight_language = "none"
suppress_warnings = [
    "autoapi.python_import_resolution",
    "misc.highlighting_failure",
    "ref.python",
    "toc.not_included",  # A link of the index leads to the reference, which no menu holds.
]

autoapi_dirs = ["../mtl", "../launch"]
autoapi_root = "reference"
autoapi_add_toctree_entry = False
autoapi_options = ["members", "undoc-members", "show-module-summary"]
autoapi_python_class_content = "class"
autoapi_keep_files = False
napoleon_use_ivar = True  # The dataclass itself lists its attributes too.

_LITERAL = re.compile(r"(`+)(.+?)\1", re.S)
_CODE = re.compile(r"\n    |^(with|for) .*:$|^(\w|, )+ = \w+\.\w+", re.M)
_MARKUP = re.compile(r"([*|\\]|_(?=\W|$))")


def setup(app: Any) -> None:
    """Connect the functions that turn our Markdown into forms that Sphinx reads."""
    app.connect("source-read", _complete_page)
    # `_escape_docstring` runs before Sphinx's napoleon, which turns `Args:` into fields.
    app.connect("autodoc-process-docstring", _escape_docstring, priority=100)


def _complete_page(app: Any, name: str, source: list[str]) -> None:
    """Put pages into the menu in the order of docs/index.md, and keep links inside the site."""
    del app
    if name == "index":
        source[0] += _list_menu(source[0])
    text = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"`\1`", source[0])
    # Links show the title of a page in place of its file. The index keeps names, which are shorter.
    shown = r"[\1](" if name == "index" else "[]("
    source[0] = re.sub(r"\[([a-z_]+)\.md\]\(", shown, text)


def _list_menu(index: str) -> str:
    menus = []
    for section in re.split(r"^## ", index, flags=re.M)[1:]:
        caption, _, rest = section.partition("\n")
        pages = "\n".join(dict.fromkeys(re.findall(r"\]\(([a-z_]+)\.md", rest)))
        menus.append(f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n")
    # Sphinx expands the menu for each page: with 600 modules in it, a build takes twice as long.
    packages = "[mtl](reference/mtl/index.rst) and [launch](reference/launch/index.rst)"
    return "".join([*menus, f"\n## Reference\n\nAll modules of {packages}.\n"])


def _escape_docstring(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Turn a docstring of plain sentences and `names` into reStructuredText, in place."""
    del app, name, thing, options
    paragraphs = "\n".join(lines).split("\n\n")
    # The docstring of a module has an example in gin or Python: a paragraph that looks like code,
    # or that ends without "." or ":".
    may_be_code = what in ("module", "package")
    made = [
        _indent(one)
        if may_be_code and (_CODE.search(one) or one.rstrip()[-1:] not in ".:")
        else _escape(one)
        for one in paragraphs
    ]
    lines[:] = "\n\n".join(made).split("\n")


def _indent(code: str) -> str:
    return "::\n\n" + "\n".join(f"    {line}" for line in code.split("\n"))


def _escape(text: str) -> str:
    made, end = [], 0
    for found in _LITERAL.finditer(text):
        made += [_MARKUP.sub(r"\\\1", text[end : found.start()]), f"``{found[2].strip()}``"]
        end = found.end()
        # A letter behind a literal, as in "`int`s", needs an escaped space: else it does not end.
        made.append("\\ " if text[end : end + 1].isalnum() else "")
    made.append(_MARKUP.sub(r"\\\1", text[end:]))
    return "".join(made)
