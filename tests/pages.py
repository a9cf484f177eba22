"""Blocks of code of the pages in docs/, which tests run as they are printed.

made = pages.read_block("histories.md", "gin")        # the first such block
"""

import pathlib
import re

_DOCS = pathlib.Path(__file__).parent.parent / "docs"


def read_block(page, kind):
    """The first block of this kind, such as "python" or "gin"."""
    text = (_DOCS / page).read_text()
    return re.search(rf"```{kind}\n(.*?)```", text, re.S).group(1)


def join_blocks(page, kind):
    """All blocks of this kind, in order, as one file."""
    text = (_DOCS / page).read_text()
    return "\n\n".join(re.findall(rf"```{kind}\n(.*?)```", text, re.S))
