"""Gin files with a mistake or two: an experiment, or one line that says where."""

import pathlib
import random
import re

import gin
import pytest

from mtl import checks
from mtl.configs import config
from tests.fuzz import cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = [path.relative_to(ROOT) for path in sorted((ROOT / "gin_configs").rglob("*.gin"))]
EXPERIMENTS = [path for path in FILES if path.parts[1] == "experiments"]
LEAVES = [path for path in FILES if path.parts[1] not in ("experiments", "data")]
DIRECTORIES = ("adult_dir", "mnist_dir", "runs")
_TOKEN = re.compile(r"#.*|\"[^\"\n]*\"|'[^'\n]*'|[@%]?[A-Za-z_][\w./]*|[0-9][\w.]*|\s+|.")
_INCLUDE = re.compile(r'^include "(.*)"', re.M)
_ODD = (
    *('""', '"x"', "'", '"', "None", "True", "-1", "0", "1e999", "1e300", "nan", "10**400", "[]"),
    *("{}", "()", "[", "]", "(", ")", "{", "}", "[[[]]]", "{None: 1}", "{'x': []}", "(1,)", "b'x'"),
    *("=", "@", "%", "/", ".", ":", ",", "\n", "\n    ", "\\\n", "#", "import", "include", "from"),
    *("@len", "@gin.macro()", "@heads.Binary", "@heads.Binary()", "@a/b/heads.Binary()", "%x", "%"),
    *(
        "9" * 400,
        "[" * 3000,
        "0x10",
        "1_000",
        "1j",
        "...",
        "lambda: 1",
        "__import__",
        "heads",
        "é",
        "\u2028",
    ),
    *('"\\n"', '"\\x00"', '"a" "b"', "'''x\ny'''", '"{}"', "-", "- 1", "+", "1 2", "not", "$", "`"),
)


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _is_word(token: str) -> bool:
    return not token.isspace() and not token.startswith("#")


POOL = sorted({t for path in FILES for t in _tokens((ROOT / path).read_text()) if _is_word(t)})


def _mutated(draw: random.Random, text: str) -> str:
    """The text with one or two of its tokens or lines wrong."""
    for _ in range(draw.choice((0, 1, 1, 1, 1, 1, 2))):
        values = list(re.finditer(r"(?<= = ).+", text))
        if values and draw.random() < 0.6:
            value = draw.choice(values)
            text = text[: value.start()] + _odd_value(draw, value.group()) + text[value.end() :]
            continue
        tokens = _tokens(text) or [""]
        words = [place for place, token in enumerate(tokens) if _is_word(token)] or [0]
        one, other = draw.choice(words), draw.choice(words)
        how = draw.randrange(10)
        if how < 5:
            alike = [t for t in POOL if t[:1].isalpha() == tokens[one][:1].isalpha()]
            spare = draw.choice((_ODD, POOL, alike))
            tokens[one] = draw.choice(spare)
        elif how == 5:
            tokens[one] = ""
        elif how == 6:
            tokens[one] += draw.choice(("", " ")) + tokens[one]
        elif how == 7:
            tokens[one], tokens[other] = tokens[other], tokens[one]
        elif how == 8:
            data = cases.damaged(draw, "".join(tokens).encode())
            return data.decode(errors=draw.choice(("replace", "surrogateescape")))
        else:
            lines = "".join(tokens).splitlines(keepends=True) or [""]
            place = draw.randrange(len(lines))
            lines.insert(draw.randrange(len(lines) + 1), lines[place])
            if draw.random() < 0.5:
                lines.pop(draw.randrange(len(lines)))
            tokens = lines
        text = "".join(tokens)
    return text


def _odd_value(draw: random.Random, value: str) -> str:
    alike = [token for token in POOL if token[:1] == value[:1]]
    tokens = _tokens(value)
    tokens[draw.randrange(len(tokens))] = draw.choice(draw.choice((_ODD, POOL)))
    odd = draw.choice((*_ODD, value))
    return draw.choice(
        (
            odd,
            draw.choice(alike or POOL),
            "".join(tokens),
            f"[{value}]",
            f"({value}, {value})",
            f"{{{value}: {odd}}}",
            f'{{"x": {value}}}',
            f'"{value}"',
            f"-{value}",
            value * 2,
            value.strip("[]()\"'"),
        )
    )


def _read_with(file: pathlib.Path) -> list[pathlib.Path]:
    """Return the file and the files that it includes."""
    included = _INCLUDE.findall((ROOT / file).read_text())
    return [file, *(p for name in included for p in _read_with(pathlib.Path(name)))]


def _load(files, params):
    """Return the experiment of the files; fail unless its saved config.gin describes the same."""
    with gin.unlock_config():
        made = config.load([str(file) for file in files], params)
        config.save(".")
        again = config.load([config.saved_in(".")])
    assert _shown(made) == _shown(again), f"{_shown(made)} is saved as {_shown(again)}"
    return made


def _shown(made) -> str:
    return re.sub(" at 0x[0-9a-f]+", "", repr(made))


def _params(draw, files):
    text = "".join((ROOT / file).read_text() for read in files for file in _read_with(read))
    used = [f'{name} = "{name}"' for name in DIRECTORIES if f"%{name}" in text]
    if draw.random() < 0.3:
        lines = [line for line in text.splitlines() if " = " in line and "[" not in line]
        used.append(
            _mutated(draw, draw.choice(lines)) if draw.random() < 0.7 else draw.choice(lines)
        )
    return used


@pytest.mark.medium
def test_a_mutated_file_is_an_experiment_or_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def case(draw):
        files = [draw.choice(EXPERIMENTS)]
        files += [draw.choice(LEAVES)] * (draw.random() < 0.3)
        params = _params(draw, files)
        wrong = draw.choice([read for file in files for read in _read_with(file)])
        text = _mutated(draw, (ROOT / wrong).read_text())
        wrong.parent.mkdir(parents=True, exist_ok=True)
        wrong.write_text(
            text, errors="surrogateescape"
        )  # A file of this folder comes before one of the project.
        try:
            _load(files, params)
            return "right"
        except checks.UserError as error:
            cases.refused(error)
            return "refused"
        finally:
            wrong.unlink()
            gin.clear_config()

    outcomes = cases.run("gin", 60, case)
    assert outcomes["right"] and outcomes["refused"]
