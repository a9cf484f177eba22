"""Lists with weights: the sums of tf.nn.embedding_lookup_sparse, and wrong weights in one line."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, spec
from mtl.data import csv, pipeline
from mtl.features import embeddings, encoding

tf1 = tf.compat.v1

IDS = [[3, 1, 3], [], [2], [0, 4], [5]]
WEIGHTS = [[0.3, 0.0, 1.7], [], [2.5], [0.0, 0.0], [-0.5]]
POSITIVE = [*WEIGHTS[:-1], [0.5]]
DIMENSION = 3


def _rag(values, dtype):
    """Lists whose number of values is not known when the graph is built."""
    flat = np.array([one for row in values for one in row], dtype.as_numpy_dtype)
    lengths = np.array(list(map(len, values)), np.int64)
    flat = tf1.placeholder_with_default(flat, [None])
    return tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)


def _fields(ids=IDS, weights=POSITIVE):
    return {"ids": _rag(ids, tf.int64), "ids/weights": _rag(weights, tf.float32)}


def _encode(part, make_fields=_fields):
    """The encoded column, and {name: value} of all variables."""
    made = features.Weighted(lookups=[part])
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        nothing = features.Statistics(directory="", entries={})
        (encoded,) = encoding.encode_columns([made], make_fields(), nothing).values()
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        return session.run((encoded, variables))


def _identity(**settings):
    return features.Identity(**{"names": ["ids"], "size": 5, "dimension": DIMENSION, **settings})


@pytest.mark.parametrize("pooling", ["mean", "sum", "sqrtn"])
def test_vectors_are_those_of_embedding_lookup_sparse(pooling):
    weights = POSITIVE if pooling == "mean" else WEIGHTS
    found, variables = _encode(_identity(pooling=pooling), lambda: _fields(weights=weights))
    (table,) = variables.values()
    # 5 is an unknown id, whose row is the last one.
    rows = [place for place, row in enumerate(IDS) for _ in row]
    columns = [place for row in IDS for place in range(len(row))]
    both = [np.array([one for row in own for one in row]) for own in (IDS, weights)]
    indices = np.array(list(zip(rows, columns, strict=True)), np.int64)
    ids, factors = (tf.SparseTensor(indices, own, [len(IDS), 3]) for own in both)
    factors = tf.cast(factors, tf.float32)
    look_up = tf.nn.safe_embedding_lookup_sparse
    if pooling != "sum":  # It leaves out weights up to 0, which sqrtn may have.
        look_up = tf.nn.embedding_lookup_sparse
    wanted = look_up(table, ids, factors, combiner=pooling).numpy()
    # A row whose weights are all 0 is NaN there, and has no vector here.
    wanted = np.nan_to_num(np.pad(wanted, [(0, len(IDS) - len(wanted)), (0, 0)]))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    assert not found[1].any() and not found[3].any() and np.abs(found[0]).min() > 0


def test_a_mean_is_that_of_the_formula():
    found, variables = _encode(_identity())
    (table,) = variables.values()
    np.testing.assert_allclose(found[0], (0.3 * table[3] + 1.7 * table[3]) / 2, rtol=1e-6)
    np.testing.assert_allclose(found[2], table[2], rtol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("pooling", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize(
    "part",
    [
        _identity(dimension=None),
        _identity(embedding=embeddings.QuotientRemainder()),
        features.Hashed(names=["ids"], num_buckets=50, storage="bfloat16"),
        features.Unified(names=["ids"], num_buckets=50, dimension=2),
        features.Growing(names=["ids"], capacity=16),
        features.Categorical(names=["ids"], vocabulary=[1, 2, 3]),
    ],
    ids=lambda part: (
        f"{type(part).__name__}-{part.embedding is not None}"
        if hasattr(part, "embedding")
        else type(part).__name__
    ),
)
def test_equal_weights_pool_like_the_column_without_weights(part, pooling):
    part = dataclasses.replace(part, pooling=pooling)
    ones = [[1.0] * len(row) for row in IDS]
    found, variables = _encode(part, lambda: _fields(weights=ones))
    with tf.Graph().as_default(), tf1.Session() as session:
        nothing = features.Statistics(directory="", entries={})
        (encoded,) = encoding.encode_columns([part], _fields(), nothing).values()
        session.run(tf1.tables_initializer())
        for variable in tf1.global_variables():
            variable.load(variables[variable.op.name], session)
        np.testing.assert_allclose(found, session.run(encoded), rtol=1e-5, atol=1e-6)


def test_tables_are_shared_and_vocabularies_joined(fit):
    table = {"table": "topic", "min_count": 1, "dimension": 2}
    weighted = features.Weighted(
        lookups=[
            features.Categorical(names=["a"], **table),
            features.Categorical(names=["b"], **table),
        ]
    )
    shown = features.Categorical(names=["c"], **table)
    assert weighted.columns == {
        "weighted_categorical_a": ("a", "a/weights"),
        "weighted_categorical_b": ("b", "b/weights"),
    }
    batch = {"a": [["u"]], "b": [["v"]], "c": np.array(["w"], object)}
    batch |= {"a/weights": [[1]], "b/weights": [[1]]}
    fitted = fit([weighted, shown], batch)
    with open(fitted.path(fitted.for_column("topic")["file"])) as file:
        assert sorted(file.read().split()) == ["u", "v", "w"]
    assert list(weighted.row_names(fitted)) == ["topic"]


def test_lists_of_fixed_length_have_weights_too():
    fields = {"ids": [[1, 2], [3, 3]], "ids/weights": [[1.0, 3.0], [0.0, 1.0]]}

    def make():
        dtypes = {"ids": tf.int64, "ids/weights": tf.float32}
        return {name: tf.constant(own, dtypes[name]) for name, own in fields.items()}

    found, variables = _encode(_identity(), make)
    (table,) = variables.values()
    np.testing.assert_allclose(found[0], (table[1] + 3 * table[2]) / 4, rtol=1e-6)
    np.testing.assert_allclose(found[1], table[3], rtol=1e-6)


WRONG = [
    ([[1.0], [1.0]], "mean", "a weight for each value of ids"),
    ([[1.0, float("nan")], [1.0]], "sum", "finite numbers in ids/weights"),
    ([[1.0, float("inf")], [1.0]], "sqrtn", "finite numbers in ids/weights"),
    ([[1.0, -1.0], [1.0]], "mean", "weights of at least 0 for a mean in ids/weights"),
]


@pytest.mark.parametrize(("weights", "pooling", "says"), WRONG)
def test_wrong_weights_fail_in_the_graph(weights, pooling, says):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"weighted_identity_ids .* {says}"):
        _encode(_identity(pooling=pooling), lambda: _fields([[1, 2], [3]], weights))


def test_a_sum_takes_weights_below_0():
    found, variables = _encode(_identity(pooling="sum"), lambda: _fields([[1]], [[-2.0]]))
    np.testing.assert_allclose(found[0], -2 * next(iter(variables.values()))[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("1:1|2:-0.5", "weights of at least 0 for a mean in ids/weights, got -0.5"),
        ("1:2|2:-3e38", "weights of at least 0 for a mean in ids/weights, got -3e+38"),
    ],
)
def test_the_record_with_a_negative_weight_is_found(cell, says, tmp_path):
    path = tmp_path / "in.csv"
    path.write_text(f"ids,y\n1:1,1\n{cell},0\n")
    fields = {"ids": ("int64", (None,)), "ids/weights": ("float32", (None,))}
    data = pipeline.Pipeline(
        source=csv.Csv(files={"train": str(path)}),
        spec=spec.Spec(features=fields, labels={"y": "int64"}),
        batch_size=2,
    )
    error = tf.errors.InvalidArgumentError(None, None, "")
    column = features.Weighted(lookups=[_identity()])
    problem = data.diagnose(error, "train", (), [column])
    assert problem.startswith(
        f"{path} line 3: features.weighted_identity_ids must read {says[:50]}"
    )
    assert (
        data.diagnose(error, "train", (), [features.Weighted(lookups=[_identity(pooling="sum")])])
        is None
    )


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"ids": [1, 2], "ids/weights": [1.0]}, "a weight for each value of ids, 2, got 1."),
        (
            {"ids": [b"a", b""], "ids/weights": [1.0] * 2},
            "a weight for each value of ids, 1, got 2.",
        ),
        ({"ids": [1], "ids/weights": [float("nan")]}, "finite numbers in ids/weights, got nan."),
        ({"ids": [1], "ids/weights": [0.0]}, None),
    ],
)
def test_a_record_is_checked(record, says):
    problem = features.Weighted(lookups=[_identity()]).check(record)
    assert problem == (says and f"features.weighted_identity_ids must read {says}")


def test_wrong_settings_are_one_line():
    numeric = features.Numeric(names=["x"])
    with pytest.raises(checks.UserError, match="Weighted.lookups must hold columns of ids"):
        features.Weighted(lookups=[numeric])
    with pytest.raises(checks.UserError, match="Weighted.lookups must hold a column"):
        features.Weighted(lookups=[])
    made = features.Weighted(lookups=[_identity()])
    with pytest.raises(checks.UserError, match=r"Weighted column's field .*'ids/weights'"):
        encoding.check_columns([made], ["ids", "ids/weight"])
    with pytest.raises(
        checks.UserError, match=r"Spec.features\['ids/weights'\] must be .*'float32'"
    ):
        spec.Spec(features={"ids": ("int64", (None,)), "ids/weights": "float32"}, labels={})
