import pytest
import tensorflow as tf

from mtl.data import files

# Each with lines that are cut by the ends of chunks.
TEXTS = [
    b"name\none\ntwo\nthree\n",
    b"name\none\ntwo\nthree",
    b"name\r\none\r\n\r\ntwo\r\nthree\r\n",
    b"name\n" + b"a long line that several chunks hold" + b"\n\n\n" + b"x\ny",
    b"name\n",
    b"name",
    b"",
    b"name\nabcdefgh\nabcdefgh\n",
    "näme\nzwölf\nzäh\n".encode(),
]


def as_tensorflow_reads(paths, skip):
    lines = [line for path in paths for line in tf.data.TextLineDataset(path).skip(skip)]
    return [line.numpy() for line in lines]


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("chunk", [1, 8, 9, 1 << 18])
def test_lines_are_those_that_tensorflow_reads(tmp_path, monkeypatch, chunk, skip):
    monkeypatch.setattr(files, "_CHUNK", chunk)
    paths = [tmp_path / f"{number}.csv" for number in range(len(TEXTS))]
    for path, text in zip(paths, TEXTS, strict=True):
        path.write_bytes(text)
    paths = list(map(str, paths))
    found = [line for block in files.read_lines(paths, skip, "") for line in block.numpy().tolist()]
    expected = as_tensorflow_reads(paths, skip)
    assert found == [line for line in expected if line]
    assert expected


def test_a_file_that_grows_while_it_is_read_is_told(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"name\none\n")
    blocks = iter(files.read_lines([str(path)], 1, "").repeat())
    next(blocks)
    with path.open("ab") as file:
        file.write(b"two\n")
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        list(blocks)
    assert files.find_change(error.value.message) == str(path)
    assert files.find_change("field 'age' must be float32") is None
