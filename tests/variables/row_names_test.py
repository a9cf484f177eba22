import json

import pytest
import tensorflow as tf

from mtl import checks, types
from mtl.variables import row_names

# Line ends of `str.splitlines` other than \n; then a NUL and a no-break space.
ODD = ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\x1d", "\x1e", "\r", "\0", "\xa0"]


def _table(path):
    """The names of a file as a lookup table numbers them."""
    index = tf.lookup.TextFileIndex
    read = tf.lookup.TextFileInitializer(
        str(path), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
    names, ids = tf.lookup.StaticHashTable(read, -1).export()
    ranked = sorted(zip(ids.numpy().tolist(), names.numpy().tolist(), strict=True))
    assert [place for place, _ in ranked] == list(range(len(ranked)))
    return [name for _, name in ranked]


@pytest.mark.parametrize(
    "content",
    [
        *(f"a{odd}b\n{odd}c\nd\n".encode() for odd in ODD),
        *(f"a{odd}\nb{odd}".encode() for odd in ODD),
        b"a\r\nb\r\nc",
        b"a\r\r\nb\n",
        b"a\n\xff\xfe\nb\n",
        b" a \n\tb\n",
    ],
)
def test_lines_are_those_of_a_lookup_table(tmp_path, content):
    path = tmp_path / f"names-{abs(hash(content))}.txt"
    path.write_bytes(content)
    assert row_names.split_lines(content) == _table(path)
    named = types.RowNames(names=str(path), axis=0)
    assert [
        name.encode(errors="surrogateescape") for name in row_names.read_names(named)
    ] == _table(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"a\n\n", b"\na\n", b"a\n\n\n"])
def test_empty_lines_stay_lines(content):
    assert row_names.split_lines(content) == content.split(b"\n")[:-1]


@pytest.mark.parametrize("odd", ODD)
def test_names_come_back_as_they_were_saved(tmp_path, odd):
    names = (f"a{odd}b", "c", odd, "", "\udcff")
    row_names.save({"head/kind/": types.RowNames(names=names, axis=-1)}, str(tmp_path))
    assert row_names.read_names(row_names.load(str(tmp_path))["head/kind/"]) == list(names)
    assert json.loads((tmp_path / row_names.FILE).read_text())


def test_rows_behind_an_odd_name_keep_their_places():
    old = row_names.split_lines("x\u2028y\na\nb\n".encode())
    assert row_names.match_rows(old, [b"b", b"a", b"new"], 4, 4).tolist() == [2, 1, -1, 3]


@pytest.mark.parametrize("now", [["b", "a", "c"], ["a", "b", "c"], ["a"]])
def test_a_vocabulary_of_another_length_is_refused(now):
    """With fewer rows for unknown values, its table may be as large as before."""
    old, new = (
        {"features/word/": types.RowNames(names=names, axis=0, and_unknown=True)}
        for names in (["a", "b"], now)
    )
    message = f"values of 'features/word' must keep the names a, b, got '{', '.join(now)}'"
    with pytest.raises(checks.UserError, match=message):
        row_names.require_order(old, new)


def _saved(directory, text="a\nb\n"):
    (directory / "words.txt").write_text(text)
    named = types.RowNames(names=str(directory / "words.txt"), axis=0, and_unknown=True)
    row_names.save({"features/word/": named}, str(directory))


def test_a_file_of_names_that_has_changed_is_refused(tmp_path):
    _saved(tmp_path)
    assert row_names.read_names(row_names.load(str(tmp_path))["features/word/"]) == ["a", "b"]
    (tmp_path / "words.txt").write_text("b\na\n")
    with pytest.raises(
        checks.UserError, match="words.txt is damaged: it has changed since .*row_n"
    ):
        row_names.load(str(tmp_path))
    (tmp_path / "words.txt").unlink()
    assert row_names.load(str(tmp_path)) == {}


def test_of_two_files_of_one_name_the_checksum_tells_which(tmp_path):
    _saved(tmp_path)
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "words.txt").write_text("x\ny\n")
    assert row_names.read_names(row_names.load(str(tmp_path))["features/word/"]) == ["a", "b"]


def test_names_without_a_checksum_are_taken_and_sealed(tmp_path):
    _saved(tmp_path)
    path = tmp_path / row_names.FILE
    entries = json.loads(path.read_text())
    del entries["checksum"], entries["features/word/"]["checksum"]
    path.write_text(json.dumps(entries))
    assert row_names.read_names(row_names.load(str(tmp_path))["features/word/"]) == ["a", "b"]
    row_names.seal(str(tmp_path))
    path.write_text(path.read_text().replace("words.txt", "wards.txt"))
    with pytest.raises(checks.UserError, match="row_names.json is damaged"):
        row_names.load(str(tmp_path))
