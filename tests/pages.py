"""Blocks of code of the pages in docs/, which tests run as they are printed.

made = pages.read_block("histories.md", "gin")        # the first such block
"""

import pathlib
import re

_DOCS = pathlib.Path(__file__).parent.parent / "docs"


def read_block(page, kind):
    """The first block of this kind, such as "python" or "gin"."""
    return read_blocks(page, kind)[0]


def read_blocks(page, kind):
    """All blocks of this kind, in their order."""
    text = (_DOCS / page).read_text()
    return re.findall(rf"```{kind}\n(.*?)```", text, re.S)


def join_blocks(page, kind):
    """All blocks of this kind, in order, as one file."""
    return "\n\n".join(read_blocks(page, kind))
