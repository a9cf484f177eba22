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
        assert str(error) == "A.b must be a part, got [<tests.checks.values_test.Plain object>]."


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/x", "_x", "a b", "a\n"])
def test_a_scope_names_a_file_as_well(name):
    with pytest.raises(checks.UserError, match="^Task.name must "):
        checks.scope_name("Task.name", name)
    checks.scope_name("Task.name", "a.b-c_1")


SECRET = "s3cr3t-Pa@ss"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"at http://me:{SECRET}@host:5000/x.", "at http://***@host:5000/x."),
        ("https://s3cr3t-Pass@host/x", "https://***@host/x"),
        (f"mysql+pymysql://me:{SECRET}@host/db, 2", "mysql+pymysql://me:***@host/db, 2"),
        (f"['a', 'postgresql://:{SECRET}@h']", "['a', 'postgresql://:***@h']"),
        (f"x://h/db?user=a&password={SECRET}&b=1", "x://h/db?user=a&password=***&b=1"),
        (f"h;PWD={SECRET};x", "h;PWD=***;x"),
        ("Authorization: Bearer s3cr3tPass.x", "Authorization: Bearer ***"),
    ],
)
def test_secrets_are_masked(text, masked):
    assert checks.mask(text) == masked == checks.mask(masked)
    assert str(checks.UserError(text)) == masked


@pytest.mark.parametrize(
    "text",
    [
        "wasbs://container@account.blob.core.windows.net/x",
        "hdfs://user@namenode:8020/x",
        "http://localhost:8501/v1/models/a@b",
        "gs://bucket/a:b@c",
        "Csv.list_delimiter must not be ':' or '@', got '//a:@'",
        "@rich/heads.Binary() of http://host/a and me@host",
        "token_env=TOKEN",
    ],
)
def test_what_is_no_secret_stays(text):
    assert checks.mask(text) == text
    checks.no_password("Csv.files", text)
