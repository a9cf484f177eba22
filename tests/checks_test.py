"""An error is one line, whatever it quotes."""

import pytest

from mtl import checks


class Plain:
    pass


def test_what_ends_a_line_is_escaped():
    assert str(checks.UserError("a\nb\r\x1b[31m\x85\u2028é")) == r"a\nb\r\x1b[31m\x85\u2028é"


def test_a_long_line_keeps_its_beginning_and_its_end():
    line = str(
        checks.UserError("x must be one of " + "column, " * 5000 + "got 'y'. Did you mean 'z'?")
    )
    assert len(line) == 2000
    assert line.startswith("x must be") and line.endswith("got 'y'. Did you mean 'z'?")


def test_where_an_object_lies_is_not_said():
    try:
        checks.fail("A.b", "be a part", [Plain()])
    except checks.UserError as error:
        assert str(error) == "A.b must be a part, got [<tests.checks_test.Plain object>]."


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/x", "_x", "a b", "a\n"])
def test_a_scope_names_a_file_as_well(name):
    with pytest.raises(checks.UserError, match="^Task.name must "):
        checks.scope_name("Task.name", name)
    checks.scope_name("Task.name", "a.b-c_1")
