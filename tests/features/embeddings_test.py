"""Vectors and gradients of smaller tables agree with NumPy; their sizes and rows are right."""

import collections
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, types
from mtl.features import embeddings, encoding

tf1 = tf.compat.v1

NOTHING = features.Statistics(directory="", entries={})
IDS = np.array([0, 3, 99, 42, 3], np.int64)
LISTS = [[1, 2, 2], [], [99]]
MIXED = embeddings.MixedDimensions(ends=[2, 5], dimensions=[4, 3, 1])
KINDS = {
    "multiply": embeddings.QuotientRemainder(num_remainders=7),
    "add": embeddings.QuotientRemainder(num_remainders=7, combine="add"),
    "concat": embeddings.QuotientRemainder(num_remainders=7, combine="concat"),
    "multi_hash": embeddings.MultiHash(num_buckets=11, num_hashes=3),
    "mixed": MIXED,
}


def _column(embedding, field="x", **settings):
    """A column of the ids 0 to 99, in this order."""
    is_ranked = isinstance(embedding, embeddings.MixedDimensions)
    kind = features.Categorical if is_ranked else features.Identity
    size = {"vocabulary": list(range(100))} if is_ranked else {"size": 100}
    return kind(**{"names": [field], "dimension": 4, "embedding": embedding, **size, **settings})


def _tensor(values):
    if isinstance(values, list):
        return tf.ragged.constant(values, tf.int64, ragged_rank=1, row_splits_dtype=tf.int64)
    return tf.constant(values)


def _run(columns, batch):
    """Return the outputs of columns with random tables, the tables, and their gradients."""
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = {name: _tensor(values) for name, values in batch.items()}
        outputs = features.encode_columns(columns, fed, NOTHING)
        variables = {v.op.name.removeprefix("features/"): v for v in tf1.trainable_variables()}
        total = tf.add_n([tf.reduce_sum(v) for v in outputs.values()])
        gradients = tf.gradients(total, list(variables.values()))
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        rng = np.random.default_rng(0)
        for variable in variables.values():
            variable.load(rng.normal(size=variable.shape).astype(np.float32), session)
        return session.run((outputs, variables, dict(zip(variables, gradients, strict=True))))


def _rows_of_hashes(ids, num_buckets, num_hashes):
    """The rows of each id, [N, num_hashes]."""
    digits = [str(number) for number in ids]
    hashes = [
        tf.strings.to_hash_bucket_strong(digits, num_buckets, [embeddings._KEY, number]).numpy()
        for number in range(num_hashes)
    ]
    return np.stack(hashes, 1)


def _expected(kind, tables, ids):
    """The vectors of ids in NumPy, [N, 4]."""
    ids = np.asarray(ids, np.int64)
    if kind == "multi_hash":
        return tables["embedding"][_rows_of_hashes(ids, 11, 3)].sum(1)
    if kind == "mixed":
        rows = []
        for number in ids:
            block = sum(number >= end for end in MIXED.ends)
            row = tables[f"block_{block}/embedding"][number - [0, 2, 5][block]]
            rows.append(row if block == 0 else row @ tables[f"projection_{block}"])
        return np.array(rows)
    pair = tables["quotient"][ids // 7], tables["remainder"][ids % 7]
    if kind == "concat":
        return np.concatenate(pair, 1)
    return pair[0] * pair[1] if kind == "multiply" else pair[0] + pair[1]


def _own(tables, name):
    return {key.removeprefix(f"{name}/"): value for key, value in tables.items() if name in key}


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_numpy(kind):
    columns = [_column(KINDS[kind]), _column(KINDS[kind], "lists", pooling="sum")]
    outputs, tables, _ = _run(columns, {"x": IDS, "lists": LISTS})
    pooled, single = outputs
    np.testing.assert_allclose(
        outputs[single], _expected(kind, _own(tables, single), IDS), rtol=1e-5, atol=1e-6
    )
    own = _own(tables, pooled)
    expected = [_expected(kind, own, row).sum(0) if row else np.zeros(4) for row in LISTS]
    np.testing.assert_allclose(outputs[pooled], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_sparse_and_those_of_finite_differences(kind):
    """In float64, by the formula in NumPy, which another test compares with the column."""
    outputs, tables, gradients = _run([_column(KINDS[kind])], {"x": IDS})
    (name,) = outputs
    own = {key: np.float64(value) for key, value in _own(tables, name).items()}
    for key, gradient in gradients.items():
        short = key.removeprefix(f"{name}/")
        dense = gradient
        if "projection" not in key:
            dense = np.zeros(own[short].shape)
            np.add.at(dense, gradient.indices, gradient.values)
        expected = np.zeros(own[short].shape)
        for place in np.ndindex(*own[short].shape):
            moved = [{**own, short: own[short].copy()} for _ in range(2)]
            for table, change in zip(moved, (1e-4, -1e-4), strict=True):
                table[short][place] += change
            high, low = (_expected(kind, table, IDS).sum() for table in moved)
            expected[place] = (high - low) / 2e-4
        np.testing.assert_allclose(dense, expected, rtol=1e-4, atol=1e-5, err_msg=key)


def test_a_row_that_nobody_asks_for_has_no_gradient():
    """Or optimizers with state would move the first row of each block at every step."""
    _, _, gradients = _run([_column(MIXED)], {"x": np.array([3, 3, 50], np.int64)})
    rows = {key: own.indices.tolist() for key, own in gradients.items() if "block" in key}
    assert list(rows.values()) == [[], [1, 1], [45]]


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_has_no_vectors(kind):
    outputs, _, _ = _run([_column(KINDS[kind])], {"x": np.zeros(0, np.int64)})
    assert [value.shape for value in outputs.values()] == [(0, 4)]


@pytest.mark.parametrize("size", [1, 2, 3, 99, 100, 101, 10_000])
def test_the_root_of_the_ids_gives_the_fewest_rows_and_each_id_a_pair_of_its_own(size):
    column = features.Identity(
        names=["x"], size=size, dimension=2, embedding=embeddings.QuotientRemainder(combine="add")
    )
    ids = size + 1  # With the one of all others.
    _, tables, _ = _run([column], {"x": np.arange(ids)})
    quotients, remainders = (len(table) for table in tables.values())
    assert quotients * remainders >= ids
    rows = [math.ceil(ids / m) + m for m in range(1, ids + 1)]
    assert quotients + remainders == min(rows)


def test_two_hashes_tell_ids_apart_that_one_hash_does_not():
    rows = [tuple(sorted(row)) for row in _rows_of_hashes(range(2000), 1000, 2)]
    alike = sum(count - 1 for count in collections.Counter(rows).values())
    assert alike < 12  # 4 of the 2 million pairs of ids are expected to be alike.
    first = collections.Counter(row for row, _ in _rows_of_hashes(range(2000), 1000, 2))
    assert sum(count - 1 for count in first.values()) > 1000
    assert max(first.values()) < 12


def test_hashes_stay_the_same():
    """Checkpoints depend on them."""
    assert _rows_of_hashes([0, 1, 12345], 1000, 2).tolist() == [[919, 809], [279, 496], [599, 555]]


def _first_values(column):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        batch = {"x": tf.constant(np.arange(4000) % 100)}
        (vectors,) = features.encode_columns([column], batch, NOTHING).values()
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        return session.run(vectors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("stddev", "expected"), [(None, 0.125), (0.02, 0.02)])
def test_first_vectors_deviate_as_those_of_a_plain_table(kind, stddev, expected):
    embedding = KINDS[kind]
    if kind == "mixed":
        embedding = embeddings.MixedDimensions(ends=[20, 50], dimensions=[64, 16, 4])
    elif kind == "multi_hash":
        embedding = embeddings.MultiHash(num_buckets=60, num_hashes=3)
    vectors = _first_values(_column(embedding, dimension=64, initial_stddev=stddev))
    assert vectors.std() == pytest.approx(0.88 * expected, rel=0.2)
    assert abs(vectors.mean()) < 0.1 * expected


@pytest.mark.medium
@pytest.mark.parametrize("temperature", [0, 0.3, 1])
def test_dimensions_follow_the_frequency_of_blocks(fit, temperature):
    embedding = embeddings.MixedDimensions(ends=[1, 3], temperature=temperature)
    counts = {"a": 80, "b": 20, "c": 20, "d": 4, "e": 2, "once": 1}
    words = np.array(list(itertools.chain(*([word] * n for word, n in counts.items()))), object)
    column = features.Categorical(names=["x"], dimension=16, embedding=embedding)
    fitted = fit([column], {"x": words})
    assert fitted.for_column("categorical_x")["block_counts"] == [80, 40, 6]
    with tf.Graph().as_default():
        features.encode_columns([column], {"x": tf.constant(words)}, fitted)
        shapes = {v.op.name: v.shape.as_list() for v in tf1.trainable_variables()}
    # The last block has d, e and the unknown.
    widths = [round(16 * (mean / 80) ** temperature) for mean in (80, 20, 2)]
    tables = [shapes[f"features/categorical_x/block_{n}/embedding"] for n in range(3)]
    assert tables == [[rows, max(1, own)] for rows, own in zip((1, 2, 3), widths, strict=True)]
    matrices = {name for name in shapes if "projection" in name}
    assert len(matrices) == sum(width < 16 for width in widths)
    names = column.row_names(fitted)
    assert {key: (own.first, own.last, own.and_unknown) for key, own in names.items()} == {
        "categorical_x/block_0": (0, 1, False),
        "categorical_x/block_1": (1, 3, False),
        "categorical_x/block_2": (3, None, True),
    }


def test_a_vocabulary_that_its_last_block_lies_behind_is_refused(fit):
    embedding = embeddings.MixedDimensions(ends=[2])
    column = features.Categorical(names=["x"], embedding=embedding, min_count=1)
    with pytest.raises(checks.UserError, match="have more than 2 categories, because"):
        fit([column], {"x": np.array(["a", "b"], object)})


def test_columns_of_one_table_have_one_embedding(fit):
    settings = {"table": "items", "num_buckets": 50, "dimension": 4}
    small = embeddings.QuotientRemainder()
    first = features.Hashed(names=["x"], embedding=small, **settings)
    second = features.Hashed(names=["y"], embedding=small, **settings)
    other = features.Hashed(names=["y"], **settings)
    _, tables, _ = _run([first, second], {"x": IDS, "y": IDS})
    assert sorted(tables) == ["items/quotient", "items/remainder"]
    with pytest.raises(
        checks.UserError, match=r"table 'items' must have the same Hashed.embedding"
    ):
        encoding.check_columns([first, other], ["x", "y"])
    mixed = features.Categorical(
        names=["x", "y"], table="words", embedding=embeddings.MixedDimensions(ends=[1])
    )
    fitted = fit([mixed], {"x": IDS % 3, "y": IDS % 2})
    assert sum(fitted.for_column("words")["block_counts"]) == 10


def test_crosses_have_smaller_tables_too():
    small = embeddings.MultiHash(num_buckets=9)
    cross = features.Crossed(crosses=[["x", "y"]], num_buckets=10**9, dimension=4, embedding=small)
    _, tables, gradients = _run([cross], {"x": IDS, "y": IDS})
    assert {name: value.shape for name, value in tables.items()} == {
        "crossed_x_x_y/embedding": (9, 4)
    }
    assert all(map(len, gradients.values()))


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (features.Identity(names=["x"], size=9, embedding=KINDS["add"]), ("size = 9",)),
        (
            features.Hashed(names=["x"], num_buckets=9, embedding=KINDS["add"], table="t"),
            ("num_buckets = 9",),
        ),
        (features.Categorical(names=["x"], vocabulary=["a"], embedding=KINDS["add"]), ("a",)),
    ],
)
def test_rows_that_stand_for_several_values_say_of_which(column, told):
    (names,) = column.row_names(NOTHING).values()
    assert names.are_grouped and names.names[: len(told)] == told


def test_plain_columns_of_a_hash_name_no_rows():
    assert features.Hashed(names=["x"], num_buckets=9).row_names(NOTHING) == {}
    names = features.Categorical(names=["x"], vocabulary=["a"]).row_names(NOTHING)
    assert names == {"categorical_x": types.RowNames(names=("a",), axis=0, and_unknown=True)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: embeddings.QuotientRemainder(num_remainders=1),
            "QuotientRemainder.num_remainders must be at least 2, got 1",
        ),
        (
            lambda: embeddings.QuotientRemainder(combine="sum"),
            "combine must be one of multiply, add, concat, got 'sum'",
        ),
        (lambda: embeddings.MultiHash(num_buckets=1), "num_buckets must be at least 2, got 1"),
        (
            lambda: embeddings.MultiHash(num_buckets=9, num_hashes=1),
            "num_hashes must be at least 2, got 1",
        ),
        (lambda: embeddings.MixedDimensions(ends=[]), "ends must hold a rank"),
        (lambda: embeddings.MixedDimensions(ends=[5, 5]), "ends must ascend"),
        (lambda: embeddings.MixedDimensions(ends=[0]), "ends must be at least 1"),
        (
            lambda: embeddings.MixedDimensions(ends=[5], dimensions=[4]),
            "dimensions must have 2 entries, one for each block, got",
        ),
        (
            lambda: embeddings.MixedDimensions(ends=[5], temperature=2),
            r"temperature must be in \[0, 1\], got 2",
        ),
        (
            lambda: features.Hashed(names=["x"], num_buckets=9, embedding=MIXED),
            "Hashed.embedding must not group ids by frequency, which only Categorical knows",
        ),
        (
            lambda: features.Identity(
                names=["x"], size=9, dimension=None, embedding=KINDS["multi_hash"]
            ),
            "Identity.embedding must be None if Identity.dimension is None",
        ),
        (
            lambda: features.Identity(names=["x"], size=9, embedding=embeddings.QuotientRemainder),
            r"embedding must be a part such as @embeddings.QuotientRemainder\(\), got .*parenth",
        ),
        (
            lambda: _run([_column(embeddings.QuotientRemainder(num_remainders=200))], {"x": IDS}),
            "num_remainders must be below 101, the ids of features/identity_x, got 200",
        ),
        (
            lambda: _run([_column(KINDS["concat"], dimension=3)], {"x": IDS}),
            "features/identity_x must have an even dimension under 'concat', got 3",
        ),
        (
            lambda: _run([_column(MIXED, dimension=2)], {"x": IDS}),
            "dimensions must be at most 2, the dimension of features/categorical_x",
        ),
        (
            lambda: _run([_column(embeddings.MixedDimensions(ends=[500]))], {"x": IDS}),
            "ends must be below 101, the ids of features/categorical_x, got 500",
        ),
        (
            lambda: _run([_column(embeddings.MixedDimensions(ends=[5]))], {"x": IDS}),
            "dimensions must be set for features/categorical_x, got None. The default needs counts",
        ),
    ],
)
def test_what_cannot_be_is_told_in_one_line(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()
