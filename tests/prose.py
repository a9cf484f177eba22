"""Finds phrasings that a newcomer has to read twice, such as a relative clause as the subject.

python -m tests.prose                # the share of each kind of text, and every phrase found
python -m tests.prose mtl/heads      # the phrases of one folder or file

Searches docstrings, comments, messages and help texts of Python files, comments of gin files, and
pages with their tables. A pattern is no reader: it misses unclear sentences, and finds some clear
ones. `make lint` therefore allows a share.
"""

import ast
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_ROOT = pathlib.Path(__file__).resolve().parents[1]
MOST = 0.03
"""The largest allowed share of sentences with one of `PHRASES`, for each kind of text."""

SOURCES = (
    "mtl",
    "launch",
    "benchmarks",
    "examples",
    "tests",
    "gin_configs",
    "docs",
    "README.md",
)
_LEAST_WORDS = 4
_WORD = r"(?:it|there|they|that|one|nothing|none|a|an|the|no|both|several|some)"
_BEFORE_WHAT = (
    "of|by|in|to|for|from|with|than|as|is|are|reads?|says?|holds?|tells?|makes?|and|or|all|after|"
    "before|within|Return|return"
)
PHRASES = {
    "relative clause as the subject": r"^(What|Whether|Of|Who|Whose|Which|Where|How)\b(?!.*\?$)",
    "genitive without a noun": (
        r"\b(is|are|as|than|for|with|by|has|have|and|or|in) "
        r"(that|those|the one|ones|one) (of|that|which|in|with|from)\b"
    ),
    "'what' as a noun": rf"\b({_BEFORE_WHAT}) what\b",
    "'is no' for 'is not a'": r"\b(is|are|was|were|be) no (?!longer|more|doubt)\w+",
    "'where' for 'if'": rf"[,;:] where {_WORD}\b",
    "'but' for 'except'": r"\b(nothing|none|all|no one) but\b|\bnor (is|are|does|do|has|was)\b",
    "two clauses with 'which'": (
        r"\b(of|in|by|with|to|from|at) which\b.*\b(of|in|by|with|to|from|at) which\b"
    ),
    "'of its own'": r"\bone's own\b|\bof ones?\b|\bof (its|their|your) own\b",
}
"""{flaw: pattern}; CONTRIBUTING.md shows how to write the sentence instead."""


class Sentence(NamedTuple):
    """A sentence, and the file and line where its text begins."""

    place: str
    text: str

    def list_flaws(self) -> list[str]:
        """Return the names of the phrases that the sentence has."""
        return [flaw for flaw, pattern in PHRASES.items() if re.search(pattern, self.text)]


def split(place: str, text: str) -> list[Sentence]:
    """Split a text into its sentences, without those of less than four words."""
    text = re.sub(r"\s+", " ", text)
    parts = re.split(r"(?<=[.!?])\s+(?=[A-Z`*\"'(\[])", text)
    return [Sentence(place, part) for part in parts if len(part.split()) >= _LEAST_WORDS]


def read(paths: Sequence[str] = SOURCES) -> dict[str, list[Sentence]]:
    """Return {kind of text: the sentences of some files and folders}."""
    found: dict[str, list[Sentence]] = {}
    for path in _list_files(paths):
        name = path.relative_to(_ROOT).as_posix()
        for kind, line, text in _READERS[path.suffix](path.read_text()):
            found.setdefault(kind, []).extend(split(f"{name}:{line}", text))
    return found


def _list_files(paths: Iterable[str]) -> Iterator[pathlib.Path]:
    for given in paths:
        path = _ROOT / given
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        built = _ROOT / "docs" / "reference"
        yield from (f for f in files if f.suffix in _READERS and built not in f.parents)


def _read_python(source: str) -> Iterator[tuple[str, int, str]]:
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            docstrings.add(node.body[0].value)
            yield "docstrings", getattr(node, "lineno", 1), text
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and node not in docstrings:
            yield "messages", node.lineno, node.value
    yield from _read_comments(source)


def _read_comments(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield blocks of comments, each with the number of its first line."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield "comments", first, " ".join(block)
            block = []
        first, last = (first, line) if block else (line, line)
        block.append(token.string.lstrip("# "))
    if block:
        yield "comments", first, " ".join(block)


def _read_page(page: str) -> Iterator[tuple[str, int, str]]:
    """Yield the paragraphs, list items and table cells of a page in Markdown."""
    page = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), page, flags=re.S)
    block: list[str] = []
    for number, line in enumerate([*page.splitlines(), ""], 1):
        continues = line.strip() and not re.match(r"\s*([-*]|\d+\.) |[#|]", line)
        if block and not continues:
            yield "pages", number - len(block), " ".join(block)
            block = []
        if line.startswith("|"):
            yield from (("tables", number, cell.strip()) for cell in line.strip("|").split("|"))
        elif line.strip():
            block.append(re.sub(r"^\s*([-*#]+|\d+\.) ", "", line))


_READERS = {".py": _read_python, ".md": _read_page, ".gin": _read_comments}


def main() -> None:
    """Print the share of each kind of text, and the sentences; exit with 1 above `MOST`."""
    for path in sys.argv[1:]:
        if not (_ROOT / path).exists():
            print(f"Error: there is neither a file nor a folder {path!r}.", file=sys.stderr)
            sys.exit(2)
    found = read(sys.argv[1:]) if sys.argv[1:] else read()
    too_many = False
    for kind, sentences in sorted(found.items()):
        flawed = [(sentence, flaws) for sentence in sentences if (flaws := sentence.list_flaws())]
        share = len(flawed) / max(1, len(sentences))
        too_many |= share >= MOST
        print(f"{kind}: {len(flawed)} of {len(sentences)} sentences, {share:.1%}")
        if sys.argv[1:] or share >= MOST:
            for sentence, flaws in flawed:
                print(f"  {sentence.place}: {', '.join(flaws)}: {sentence.text}")
    sys.exit(1 if too_many else 0)


if __name__ == "__main__":
    main()
