"""pdb stops at the first line of a function."""

import bdb
import io

import pytest

from mtl.tools.debugging import breakpoints


def double(value):
    """Double a value.

    pdb takes a line of a docstring for none of code.
    """
    return 2 * value


def debug(commands, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(commands))
    return breakpoints.call_under_pdb(lambda: double(4) + 1, stop_in=double)


def test_it_stops_there_and_goes_on(monkeypatch, capsys):
    assert debug("p 'value is', value\ncontinue\n", monkeypatch) == 9
    out = capsys.readouterr().out
    assert "-> return 2 * value" in out and "('value is', 4)" in out


def test_who_quits_gets_no_value(monkeypatch):
    for commands in ("quit\n", ""):
        with pytest.raises(bdb.BdbQuit):
            debug(commands, monkeypatch)
