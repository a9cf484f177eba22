"""Vectors from a file: which rows start from them, and which files are refused."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, histories
from mtl.features import tokenizers, word_vectors
from mtl.variables import sharding

tf1 = tf.compat.v1
LINES = ["bird 7 8", "cat 0.5 -1e-3", "cook house 1 2", "cook 3 4", "cat 9 9"]
ROWS = np.array(["cook", "cook", "cat", "pilot", "cook house"], object)


@pytest.fixture
def write(tmp_path):
    """Write lines as a file of vectors, and return its path."""

    def write_lines(lines, name="vectors.txt", end="\n"):
        path = tmp_path / name
        path.write_bytes("".join(f"{line}{end}" for line in lines).encode())
        return str(path)

    return write_lines


def _categorical(path, **settings):
    required = {"names": ["x"], "dimension": 2, "min_count": 1, "word_vectors": path}
    return features.Categorical(**required | settings)


def _start(column, fitted, cut=None):
    """The tables as they start, by name."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        with (cut or sharding.Sharding(servers=1, min_bytes=1)).cut_tables():
            features.encode_columns([column], {"x": tf.constant(ROWS.tolist())}, fitted)
        session.run(tf1.global_variables_initializer())
        return {v.op.name: value for v in tf1.global_variables() for value in [session.run(v)]}


@pytest.mark.parametrize(
    ("header", "end"), [([], "\n"), (["5 2"], "\n"), ([], " \r\n"), (["5 2"], " \n")]
)
def test_rows_start_from_the_first_line_of_their_token(fit, write, caplog, header, end):
    caplog.set_level(logging.INFO)
    column = _categorical(write([*header, *LINES], end=end))
    fitted = fit([column], {"x": ROWS})
    # By frequency, then by bytes: cook, cat, "cook house", pilot; and a place of the unknown.
    (table,) = _start(column, fitted).values()
    expected = np.float32([[3, 4], [0.5, -1e-3], [1, 2]])
    np.testing.assert_array_equal(table[:3], expected)
    told = "features/categorical_x: 3 of 4 tokens, 75%, start from"
    assert len([r for r in caplog.records if told in r.getMessage()]) == 1
    assert (np.abs(table[3:]) > 0).all() and (np.abs(table[3:]) < 2 * 2**-0.5).all()
    plain = _categorical(None)
    assert plain.accumulators().keys() == {"categorical_x"}
    (without,) = _start(plain, fitted).values()
    assert without.shape == table.shape and not np.array_equal(without[:3], table[:3])


@pytest.mark.parametrize("kind", ["list", "file"])
def test_tokens_of_a_given_vocabulary(fit, write, kind):
    words = ["pilot", "cat"]
    vocabulary = words if kind == "list" else write(words, "words.txt")
    column = _categorical(write(LINES), vocabulary=vocabulary, initial_stddev=1e-3)
    (table,) = _start(column, fit([column], {"x": ROWS})).values()
    np.testing.assert_array_equal(table[1], np.float32([0.5, -1e-3]))
    assert np.abs(table[[0, 2]]).max() < 2e-3
    files = {"categorical_x": vocabulary} if kind == "file" else {}
    assert column.files == {**files, "categorical_x/word_vectors": column.word_vectors}


def test_columns_of_one_table_share_its_vectors(fit, write):
    path = write(LINES)
    columns = [
        features.History(
            name="seen",
            events=[_categorical(path, names=["y"], table="words")],
            encoder=histories.Pooling(),
        ),
        _categorical(path, table="words"),
    ]
    fitted = fit(columns, {"x": ROWS[:2], "y": [["bird"], []]})
    tables = _start(columns[1], fitted)
    assert list(tables) == ["features/words/embedding"]
    np.testing.assert_array_equal(tables["features/words/embedding"][:2], [[3, 4], [7, 8]])
    other = _categorical(None, table="words", prefix="other")
    with pytest.raises(checks.UserError, match="must have the same Categorical.word_vectors"):
        features.check_columns([columns[1], other], {"x": ROWS})


def test_each_shard_starts_from_its_part(fit, write):
    vocabulary = [f"w{n}" for n in range(7)]
    numbers = {n: [n, n + 0.5] for n in (0, 1, 3, 4, 6)}
    path = write([f"w{n} {a} {b}" for n, (a, b) in numbers.items()])
    column = _categorical(path, vocabulary=vocabulary, num_unknown=5)
    fitted = fit([column], {"x": ROWS})
    shards = _start(column, fitted, sharding.Sharding(servers=4, min_bytes=1))
    assert [len(shard) for shard in shards.values()] == [3, 3, 3, 3]
    table = np.concatenate(list(shards.values()))
    known = sorted(numbers)
    np.testing.assert_array_equal(table[known], [numbers[n] for n in known])
    assert np.abs(table[[2, 5, *range(7, 12)]]).max() < 2 * 2**-0.5


@pytest.mark.medium
def test_tokens_of_texts_have_vectors_too(fit, write):
    column = features.Text(
        names=["x"],
        tokenizer=tokenizers.Words(min_count=1),
        encoder=histories.Pooling(),
        dimension=2,
        word_vectors=write(LINES),
    )
    fitted = fit([column], {"x": ROWS})
    assert fitted.for_column("text_x/word_vectors")["found"] == 2
    np.testing.assert_array_equal(
        _start(column, fitted)["features/text_x/embedding"][:2], np.float32([[3, 4], [0.5, -1e-3]])
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["a 1 2 3"], r"vectors of 2 numbers \(dimension\), got 3. In line 1 of"),
        (["9 3", "a 1 2 3"], r"vectors of 2 numbers \(dimension\), got 3. In line 1 of"),
        (
            ["a 1 2", "b 1"],
            r"a word and 2 numbers \(dimension\) in each line, got 'b 1'. In line 2",
        ),
        (["a 1 2", ""], "in each line, got ''. In line 2 of"),
        (["a 1 2", "b 0.1 2 3"], "in each line, got 'b 0.1 2 3'. In line 2 of"),
        (["a 1 2", "cat 1 x"], "finite numbers behind each word, got '1 x'. In line 2 of"),
        (["a 1 2", "cat 1 nan"], "finite numbers behind each word, got '1 nan'. In line 2"),
        (["a 1 2", "cat 1 1e60"], "finite numbers behind each word, got '1 1e60'. In line 2"),
        (["a 1 2", "CAT 1 2"], "hold a vector of a token of categorical_x, got .*capital letters"),
        ([], "hold a vector of a token of categorical_x"),
    ],
)
def test_files_that_are_none_of_vectors(fit, write, lines, says):
    with pytest.raises(checks.UserError, match=says) as raised:
        fit([_categorical(write(lines))], {"x": ROWS})
    assert str(raised.value).startswith("Categorical.word_vectors must hold ")


def test_a_file_that_is_not_there(fit, write, tmp_path):
    for path in ("no", str(tmp_path)):
        says = "Categorical.word_vectors must be an existing file, got"
        with pytest.raises(checks.UserError, match=says):
            fit([_categorical(path)], {"x": ROWS})
    says = "the vocabulary of categorical_x must be an existing file, got 'no'"
    with pytest.raises(checks.UserError, match=says):
        fit([_categorical(write(LINES), vocabulary="no")], {"x": ROWS})


def test_one_hot_columns_have_no_vectors():
    with pytest.raises(checks.UserError, match="be None if the column has no embedding, got 'x'"):
        _categorical("x", dimension=None)


def test_vectors_of_another_run_are_adopted_whole(fit, write, tmp_path):
    column = _categorical(write(LINES))
    fitted = fit([column], {"x": ROWS})
    ours = str(tmp_path / "ours")
    batches = [({"x": tf.constant(["cat", "pilot"])}, {})]
    features.fit_columns([column], batches, ours)
    features.adopt_statistics(list(column.accumulators()), fitted.directory, ours)
    (own,), (adopted,) = (
        _start(column, each).values() for each in (fitted, features.load_statistics(ours))
    )
    np.testing.assert_array_equal(own, adopted)


def test_other_settings_of_vectors_are_other_statistics(fit, write):
    path = write(LINES)
    fitted = fit([_categorical(None)], {"x": ROWS})
    missing = features.missing_statistics([_categorical(path)], fitted.directory)
    assert missing == ["categorical_x/word_vectors"]
    assert word_vectors.key("x") == "x/word_vectors"
