"""The pages lead somewhere: every link, and every path of this repository that they name."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
INDEX = ROOT / "docs" / "index.md"
GENERATED = ("parts.md", "head_parts.md", "network_parts.md")  # By launch.parts.

_WORD = re.compile(r"\S*[^\W_]\S*")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
# A path starts with a folder of this repository: `runs/digits` and `data/adult` are a user's, and
# "examples/s" is a speed.
_FOLDERS = "benchmarks|deploy|docs|examples|gin_configs|launch|mtl|tests|\\.ci|\\.github"
_PATH = re.compile(rf"(?<![\w./<-])(?:{_FOLDERS})/(?!s\b)[\w./*-]*[\w*]/?")
# Inside of a text about `mtl/`, a file may be named from there: `optimization/idle.py`.
_FILE = re.compile(r"`([a-z][\w-]*(?:/[\w-]+)+\.(?:py|gin))`")
_MODULE = re.compile(r"python -m ((?:benchmarks|launch|tests)\.\w+)")
_COMMAND = re.compile(r"(?:python -m (benchmarks|launch)\.(\w+)|\bmtl (\w+))([^`\n]*)")
BENCHMARKS = sorted(ROOT.glob("benchmarks/*.py"))


@functools.cache
def _headings(page):
    """The anchors of a page, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def _broken_links(page):
    # Brackets within code, for example in an equation, are not links.
    text = re.sub(r"`[^`\n]*`", "", page.read_text())
    for target in _LINK.findall(text):
        path, _, anchor = target.partition("#")
        # Pages of jobs and advisories belong to the host, beside the repository.
        if re.match(r"\w+:|\.\./\.\./(actions|security)/", target):
            continue
        found = (page.parent / path).resolve() if path else page
        is_there = found.exists() and (not anchor or anchor in _headings(found))
        if not is_there:
            yield f"link {target}"


def _broken_paths(page):
    text = page.read_text()
    for path in _PATH.findall(text):
        if not any(ROOT.glob(path.rstrip("/"))):
            yield f"path {path}"
    for path in _FILE.findall(text):
        if not any((folder / path).exists() for folder in (ROOT, ROOT / "mtl")):
            yield f"path {path}"
    for module in _MODULE.findall(text):
        base = ROOT / module.replace(".", "/")
        if not (base.with_suffix(".py").exists() or (base / "__main__.py").exists()):
            yield f"module {module}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_leads_somewhere(page):
    broken = sorted({*_broken_links(page), *_broken_paths(page)})
    assert not broken, "\n".join(broken)


@functools.cache
def _flags(path):
    """The flags that a module of benchmarks/ or launch/ defines, or a module that it imports."""
    text = path.read_text()
    names = set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"|"--(\w+)"', text))
    flags = {name for pair in names for name in pair if name}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module in ("benchmarks", "launch"):
            modules = [ROOT / node.module / f"{alias.name}.py" for alias in node.names]
            flags = flags.union(*(_flags(module) for module in modules if module.exists()))
    return flags


@pytest.mark.parametrize("path", [*PAGES, *BENCHMARKS], ids=lambda path: path.name)
def test_every_flag_of_a_command_is_defined(path):
    wrong = []
    for package, module, verb, rest in _COMMAND.findall(path.read_text().replace("\\\n", " ")):
        file = ROOT / (package or "launch") / f"{module or verb}.py"
        if file.exists():
            known = {*_flags(file), "help"}
            flags = re.findall(r"(?<![\w-])--([a-z]\w+)", rest)
            wrong += [f"{file.stem} --{flag}" for flag in flags if flag not in known]
    assert not wrong, "\n".join(wrong)


def test_pages_written_by_hand_have_at_most_40_500_words():
    """A word has a letter or a digit: the bars of a table are none."""
    pages = set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / name for name in GENERATED}
    counts = {page.name: len(_WORD.findall(page.read_text())) for page in pages}
    longest = sorted(counts, key=counts.get)[-5:]
    assert sum(counts.values()) <= 40_500, f"{sum(counts.values())}; the longest: {longest}"


def test_the_index_names_every_page():
    linked = {(INDEX.parent / target).resolve() for target in _LINK.findall(INDEX.read_text())}
    pages = set((ROOT / "docs").glob("*.md")) - {INDEX}
    assert pages <= linked, f"missing in docs/index.md: {sorted(p.name for p in pages - linked)}"


def test_the_page_that_follows_a_batch_names_what_is_there():
    page = (ROOT / "docs" / "follow_a_batch.md").read_text()
    lacking = []
    for path, names in re.findall(r"^\| \d+ \| `([\w/.]+)`, ((?:`[\w.]+`(?:, )?)+)", page, re.M):
        text = (ROOT / path).read_text()
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", names):
            if not re.search(rf"(?:def|class) {name}\b", text):
                lacking.append(f"{path}: {name}")
    assert not lacking, "\n".join(lacking)
