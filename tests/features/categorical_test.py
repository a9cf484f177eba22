import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features

_JOBS = np.array(["cook", "cook", "cook", "nurse", "nurse", "king"], object)


def _ids(encoded):
    return encoded[:, 0].tolist()


def test_fitted_vocabulary_ranks_by_frequency_and_unknown_comes_last(encode):
    column = features.Categorical(names=["job"], dimension=4)
    batch = np.array(["nurse", "cook", "king", "pilot", ""], object)
    encoded = encode([column], {"job": _JOBS}, {"job": batch})["categorical_job"]
    assert encoded.shape == (5, 4)
    assert _ids(encoded) == [1, 0, 2, 2, 2]


def test_min_count_one_keeps_what_occurs_once_and_max_size_cuts(encode):
    columns = [
        features.Categorical(names=["job"], min_count=1, prefix="all"),
        features.Categorical(names=["job"], min_count=1, max_size=1, prefix="one"),
    ]
    encoded = encode(columns, {"job": _JOBS}, {"job": np.array(["king", "nurse"], object)})
    assert _ids(encoded["all_job"]) == [2, 1]
    assert _ids(encoded["one_job"]) == [1, 1]


def test_a_field_without_a_frequent_category_is_refused(encode):
    column = features.Categorical(names=["job"])
    with pytest.raises(
        checks.UserError, match=r"categorical_job must hold a value that occurs 2 times"
    ):
        encode([column], {"job": np.array(["a", "b", "c"], object)})


def test_the_empty_string_is_unknown_unless_listed(encode):
    columns = [
        features.Categorical(names=["job"]),
        features.Categorical(names=["job"], vocabulary=["", "a"], prefix="list"),
    ]
    encoded = encode(columns, {"job": np.array(["", "", "a", "a"], object)})
    assert _ids(encoded["categorical_job"]) == [1, 1, 0, 0]
    assert _ids(encoded["list_job"]) == [0, 0, 1, 1]


def test_given_list_and_file(encode, tmp_path):
    path = tmp_path / "jobs.txt"
    path.write_text("nurse\ncook\n")
    columns = [
        features.Categorical(names=["job"], vocabulary=["king", "cook"], prefix="list"),
        features.Categorical(names=["job"], vocabulary=str(path), num_unknown=3, prefix="file"),
    ]
    encoded = encode(columns, {"job": _JOBS})
    assert _ids(encoded["list_job"]) == [1, 1, 1, 2, 2, 0]
    assert _ids(encoded["file_job"])[:5] == [1, 1, 1, 0, 0]
    assert 2 <= _ids(encoded["file_job"])[5] <= 4


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_integers_are_categories_too(encode, dtype):
    values = np.array([1, 1, 0, 1, 0], dtype)
    column = features.Categorical(names=["x"])
    assert _ids(encode([column], {"x": values})["categorical_x"]) == [0, 0, 1, 0, 1]
    given = features.Categorical(names=["x"], vocabulary=[0, 1])
    assert _ids(encode([given], {"x": values})["categorical_x"]) == [1, 1, 0, 1, 0]
    for same in ([0.0, 1.0], [False, True], ["0", "1"]):
        given = features.Categorical(names=["x"], vocabulary=same)
        assert _ids(encode([given], {"x": values})["categorical_x"]) == [1, 1, 0, 1, 0]


def test_the_optimisation_of_graphs_sees_how_many_rows_are_looked_up():
    """It starts from a graph as it is saved, without the shapes that Python knows."""
    column = features.Categorical(names=["job"], vocabulary=["a", "b"], dimension=4)
    nothing = features.Statistics(directory="", entries={})
    with tf.Graph().as_default() as graph:
        found = features.encode_columns([column], {"job": tf.constant(["a"] * 5)}, nothing)
        (name,) = [tensor.name for tensor in found.values()]
    with tf.Graph().as_default():
        (saved,) = tf.import_graph_def(graph.as_graph_def(), return_elements=[name])
    assert saved.shape == [5, 4]


def test_one_hot(encode):
    column = features.Categorical(names=["job"], dimension=None)
    encoded = encode([column], {"job": _JOBS})["categorical_job"]
    np.testing.assert_array_equal(encoded, np.eye(3)[[0, 0, 0, 1, 1, 2]])


@pytest.mark.parametrize(
    "pooling, expected",
    [
        ("sum", [[3, 3], [0, 0], [1, 1]]),
        ("mean", [[1, 1], [0, 0], [1, 1]]),
        ("sqrtn", [[3 / 3**0.5, 3**0.5], [0, 0], [1, 1]]),
    ],
)
def test_lists_are_pooled_and_empty_ones_give_zeros(encode, pooling, expected):
    # Row i of the table is (i, 1); the ids are (0, 1, 2), none, and (1).
    tags = [["a", "b", "c"], [], ["b"]]
    column = features.Categorical(
        names=["tags"], vocabulary=["a", "b"], dimension=2, pooling=pooling
    )
    encoded = encode([column], {"tags": tags})["categorical_tags"]
    np.testing.assert_allclose(encoded, expected, rtol=1e-6)


def test_lists_of_fixed_length_are_pooled_too(encode):
    column = features.Identity(names=["x"], size=10, dimension=2, pooling="mean")
    encoded = encode([column], {"x": np.array([[1, 3], [5, 5]])})["identity_x"]
    np.testing.assert_allclose(encoded, [[2, 1], [5, 1]])


def test_multi_hot_counts(encode):
    tags = [["a", "b", "b"], []]
    column = features.Categorical(
        names=["tags"], vocabulary=["a", "b"], dimension=None, pooling="sum"
    )
    encoded = encode([column], {"tags": tags})["categorical_tags"]
    assert encoded.tolist() == [[1, 2, 0], [0, 0, 0]]


def test_vocabulary_of_lists_is_fitted_over_all_their_values(encode):
    column = features.Categorical(names=["tags"], dimension=None, pooling="sum")
    encoded = encode([column], {"tags": [["b", "b"], ["a", "a", "b"], ["z"]]})
    assert encoded["categorical_tags"].tolist() == [[2, 0, 0], [1, 2, 0], [0, 0, 1]]


def test_hash_is_the_fingerprint_of_the_string_and_of_digits(encode):
    columns = [features.Hashed(names=["job", "n"], num_buckets=50)]
    numbers = np.arange(6)
    encoded = encode(columns, {"job": _JOBS, "n": numbers})
    expected = tf.strings.to_hash_bucket_fast(_JOBS.tolist(), 50).numpy().tolist()
    assert _ids(encoded["hashed_job"]) == expected
    digits = [str(number) for number in numbers]
    assert _ids(encoded["hashed_n"]) == tf.strings.to_hash_bucket_fast(digits, 50).numpy().tolist()


def test_identity_gives_all_others_one_place(encode):
    column = features.Identity(names=["x"], size=3)
    values = np.array([0, 2, 3, -1, 2**40], np.int64)
    assert _ids(encode([column], {"x": values})["identity_x"]) == [0, 2, 3, 3, 3]


@pytest.mark.parametrize(
    "column",
    [features.Categorical(names=["x"]), features.Hashed(names=["x"], num_buckets=9)],
)
def test_fractions_are_no_categories(encode, column):
    with pytest.raises(checks.UserError, match="give it to a Numeric or Bucketized column"):
        encode([column], {"x": np.array([0.5, 1.5])})


def test_a_wide_one_hot_is_refused(encode):
    column = features.Identity(names=["x"], size=10_000, dimension=None)
    with pytest.raises(checks.UserError, match="must have at most 4096 ids to be one-hot"):
        encode([column], {"x": np.array([1])})


@pytest.mark.parametrize("content", ["a\n\nb\n", "a\nb\na\n", ""])
def test_a_vocabulary_file_with_empty_or_equal_lines(encode, tmp_path, content):
    path = tmp_path / "vocabulary.txt"
    path.write_text(content)
    column = features.Categorical(names=["x"], vocabulary=str(path))
    with pytest.raises(checks.UserError, match="none empty and none twice"):
        encode([column], {"x": np.array([1])})


def test_a_vocabulary_file_with_a_byte_order_mark(encode, tmp_path):
    """The first category would be unknown, without a word."""
    path = tmp_path / "vocabulary.txt"
    path.write_text("cook\nking\n", encoding="utf-8-sig")
    column = features.Categorical(names=["job"], vocabulary=str(path))
    with pytest.raises(checks.UserError, match="vocabulary must be a file without a byte order"):
        encode([column], {"job": np.array(["cook"])})


def test_a_vocabulary_file_that_is_not_there(encode):
    column = features.Categorical(names=["x"], vocabulary="no/such/file")
    with pytest.raises(checks.UserError, match="Categorical.vocabulary must be an existing file"):
        encode([column], {"x": np.array([1])})


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: features.Categorical(names=["x"], min_count=0), "min_count must be at least 1"),
        (lambda: features.Categorical(names=["x"], num_unknown=0), "num_unknown must be at least"),
        (lambda: features.Categorical(names=["x"], vocabulary=[]), "vocabulary must hold a categ"),
        (lambda: features.Categorical(names=["x"], vocabulary=[1, "1"]), "hold each name once"),
        (lambda: features.Categorical(names=["x"], vocabulary=[1, 1.0]), "hold each name once"),
        (
            lambda: features.Categorical(names=["x"], vocabulary=[0.5]),
            "hold texts or integers, got",
        ),
        (lambda: features.Categorical(names=["x"], vocabulary=[None]), "hold texts or integers"),
        (lambda: features.Categorical(names=["x"], vocabulary=3), "vocabulary must be a list"),
        (lambda: features.Categorical(names=["x"], dimension=0), "dimension must be above 0"),
        (lambda: features.Categorical(names=["x"], dimension=2.5), "must be a whole number"),
        (lambda: features.Categorical(names=["x"], pooling="max"), "pooling must be one of"),
        (lambda: features.Hashed(names=["x"], num_buckets=5, initial_stddev=0), "must be above 0"),
        (
            lambda: features.Identity(names=["x"], size=5, dimension=None, initial_stddev=0.1),
            "Identity.initial_stddev must be None if Identity.dimension is None, got 0.1",
        ),
        (lambda: features.Hashed(names=["x"], num_buckets=1), "num_buckets must be at least 2"),
        (lambda: features.Identity(names=["x"], size=0), "size must be at least 1"),
    ],
)
def test_settings_are_checked_at_construction(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()


@pytest.mark.parametrize(
    "build",
    [
        lambda **more: features.Categorical(names=["x"], vocabulary=list(range(999)), **more),
        lambda **more: features.Hashed(names=["x"], num_buckets=1000, **more),
        lambda **more: features.Identity(names=["x"], size=999, **more),
        lambda **more: features.Crossed(crosses=[["x", "y"]], **more),
        lambda **more: features.Bucketized(names=["x"], boundaries=list(range(998)), **more),
    ],
    ids=["categorical", "hashed", "identity", "crossed", "bucketized"],
)
@pytest.mark.parametrize(("stddev", "expected"), [(None, 0.25), (0.01, 0.01)])
def test_tables_start_from_a_normal_of_the_deviation_that_is_set(build, stddev, expected):
    column = build(dimension=16, initial_stddev=stddev)
    nothing = features.Statistics(directory="", entries={})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)
        batch = {"x": tf.constant([1, 2]), "y": tf.constant([1, 2])}
        features.encode_columns([column], batch, nothing)
        session.run(tf.compat.v1.global_variables_initializer())
        (table,) = session.run(tf.compat.v1.trainable_variables())
    assert table.shape == (1000, 16)
    # The deviation of a normal distribution that is cut off at two deviations.
    assert table.std() == pytest.approx(0.8796 * expected, rel=0.02)
    assert abs(table).max() <= 2 * expected


def test_passes_of_a_graph_look_up_in_one_table():
    column = features.Categorical(names=["job"], vocabulary=["cook", "nurse"], dimension=2)
    nothing = features.Statistics(directory="", entries={})
    with tf.Graph().as_default() as graph:
        for _ in range(2):
            with tf.compat.v1.variable_scope("model", reuse=tf.compat.v1.AUTO_REUSE):
                features.encode_columns([column], {"job": tf.constant(["cook"])}, nothing)
        assert [op.type for op in graph.get_operations()].count("HashTableV2") == 1
