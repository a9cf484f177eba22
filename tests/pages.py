"""Blocks of code of the pages in docs/, which tests run as they are printed.

made = pages.read_block("histories.md", "gin")        # the first such block
"""

import pathlib
import re
from typing import NamedTuple

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


class Block(NamedTuple):
    """A block of a page: its kind (may be ""), its text, and the paragraph above it."""

    kind: str
    text: str
    above: str


def list_blocks(page):
    """All blocks of a page of docs/, or of ../README.md, in their order."""
    parts = re.split(r"^```(\w*)\n(.*?)^```$", (_DOCS / page).read_text(), flags=re.S | re.M)
    above, kinds, texts = parts[::3], parts[1::3], parts[2::3]
    return [
        Block(kind, text, words.strip().rpartition("\n\n")[2])
        for kind, text, words in zip(kinds, texts, above, strict=False)
    ]


_COMMAND = re.compile(r"(mtl|python|make|head|cat|ls|sh|bash|curl|pip|kill|wait|d=)(\s|\S*=|$)")


def split_commands(block):
    """[(command, what it prints)] of a block that begins with a command, else [("", its text)]."""
    joined = block.text.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        if _COMMAND.match(line):
            found.append((line, ""))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
        else:
            return [("", joined)]
    return found


def apply_diff(diff, text):
    """Return a text after a change: "-" before a line that goes, "+" before a line that comes.

    An empty line of the diff parts two changes.
    """
    for change in re.split(r"\n\n+", diff.strip("\n")):
        lines = change.splitlines()
        before, after = (
            "".join(f"{line[1:]}\n" for line in lines if line[0] in kinds) for kinds in (" -", " +")
        )
        assert text.count(before) == 1, f"{text.count(before)} places to change:\n{before}"
        text = text.replace(before, after)
    return text


def find_missing(expected, printed):
    """The first line of an example that a program did not print, in this order; None if none is.

    "..." stands for any lines. Numbers may be a little off, as other machines compute other bits;
    speeds, times and names of exports may be anything.
    """
    lines = iter(printed.splitlines())
    for wanted in filter(str.strip, expected.splitlines()):
        if wanted.strip() != "..." and not any(_is_alike(wanted, line) for line in lines):
            return wanted
    return None


_NUMBER = re.compile(r"(-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)")
_ANY = re.compile(
    r"[\d,]+ examples/s(?:, waiting \d+%)?|[\d,]+ s left|\b\d{10}\b|[\d.]+ m?s\b|at most \S+ from"
)
# The mark of the best value: the last bit may decide between two runs that print the same value.
_MARK = re.compile(r"(?<=\d)\*(?!\S)")


def _is_alike(wanted, line):
    lines = (" ".join(_ANY.sub("*", _MARK.sub("", one)).split()) for one in (wanted, line))
    ours, theirs = map(_NUMBER.split, lines)
    if len(ours) != len(theirs) or ours[::2] != theirs[::2]:
        return False
    return all(map(_is_near, ours[1::2], theirs[1::2]))


def _is_near(ours, theirs):
    if "." not in ours and "." not in theirs:
        return ours == theirs
    one, other = (float(number.replace(",", "")) for number in (ours, theirs))
    return abs(one - other) <= max(0.1, 0.15 * abs(one))
