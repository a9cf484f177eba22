"""Blocks that Arrow reads at once hold the same rows as lines that are checked one by one."""

import random

import pytest

from mtl import checks
from mtl.tools.drafting import lines

CELLS = ["", "1", "a", " a", "a ", '"a"', '"a,b"', '"a""b"', '""', '" "', 'a"b', '"a"b', "\t", "é"]


def _read(path, dialect):
    try:
        blocks = list(lines.read_blocks(dialect))
    except checks.UserError as error:
        return str(error)
    return [row for _, table in blocks for row in table.to_pylist()], len(blocks)


def _make(draw, delimiter):
    ends = draw.choice([["\n"], ["\r\n"], ["\n", "\r\n"], ["\n"] * 9 + ["\r", "\n\n", "\n \n"]])
    odd = draw.random() < 0.5
    cells = CELLS if odd else CELLS[:5] + CELLS[6:8]
    rows = [delimiter.join(draw.choices(cells, k=draw.choice([3] * 40 + [2]))) for _ in range(5)]
    return f"x{delimiter}y{delimiter}z\n" + "".join(row + draw.choice(ends) for row in rows)


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("block", [1 << 24, 7])
def test_both_ways_read_the_same_rows(tmp_path, monkeypatch, delimiter, block):
    draw, plain, path = random.Random(0), 0, tmp_path / "a.csv"
    fast = lines._read_plain
    for _ in range(200):
        text = _make(draw, delimiter)
        path.write_bytes(text.encode())
        dialect = lines.Dialect(paths=(str(path),), delimiter=delimiter, columns=("x", "y", "z"))
        monkeypatch.setattr(lines, "_BLOCK_BYTES", block)
        monkeypatch.setattr(lines, "_read_plain", fast)
        plain += fast(text.encode().removesuffix(b"\n"), dialect, True) is not None
        rows = _read(path, dialect)
        monkeypatch.setattr(lines, "_read_plain", lambda *_, **__: None)
        assert rows == _read(path, dialect), text
    assert 30 < plain < 190


def test_an_error_behind_plain_blocks_names_its_line(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,y\n" + b"1,2\n" * 50 + b'1,"2\n' + b"1,2\n" * 50)
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 64)
    with pytest.raises(checks.UserError, match=r"a.csv line 52 must close its quotes"):
        list(lines.read_blocks(lines.read_dialect([str(path)])))
    path.write_bytes(b"x,y\n" + b"1,2\n" * 50 + b"1,\xff\n")
    with pytest.raises(checks.UserError, match=r"a.csv line 52 must be UTF-8"):
        list(lines.read_blocks(lines.read_dialect([str(path)])))
