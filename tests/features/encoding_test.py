import dataclasses
import os
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features
from mtl.features import column
from tests.optimization import training

tf1 = tf.compat.v1

_JOBS = np.array(["a", "b", "a", "c", "b", "a"], object)


def _columns():
    return [
        features.Categorical(names=["job"], min_count=1, dimension=2),
        features.Categorical(names=["tags"], vocabulary=["x", "y"], dimension=2),
        features.Hashed(names=["job"], num_buckets=10, dimension=2),
        features.Numeric(names=["age"]),
        features.Bucketized(names=["age"], boundaries=3, dimension=2),
        features.Crossed(crosses=[["age", "job"]], boundaries={"age": 3}, dimension=2),
        features.Image(names=["image"], shape=(2, 2, 1)),
    ]


def _batch():
    return {
        "job": tf.constant(_JOBS.tolist()),
        "tags": tf.ragged.constant([["x"], [], ["y", "x"], ["z"], ["x"], []], tf.string),
        "age": tf.range(6.0),
        "image": tf.fill([6], tf.io.encode_png(np.full((2, 2, 1), 100, np.uint8))),
    }


@pytest.fixture
def directory(tmp_path):
    path = str(tmp_path / "statistics")
    features.fit_columns(_columns(), [(_batch(), {})], path)
    return path


@pytest.mark.medium
def test_inputs_come_in_order_of_their_names_whatever_the_order_of_columns(directory):
    names = []
    for columns in (_columns(), _columns()[::-1]):
        with tf.Graph().as_default():
            names.append(
                list(
                    features.encode_columns(columns, _batch(), features.load_statistics(directory))
                )
            )
    assert names[0] == names[1] == sorted(names[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Given(column.PerField):
    """A column whose input is given."""

    prefix: str = "given"
    value: Any

    def _encode(self, features, field, output, fitted):
        return self.value


@pytest.mark.parametrize(
    "value", [None, np.zeros([6, 1]), np.zeros([6], "f"), np.float32(1)], ids=repr
)
def test_an_input_of_another_form_is_one_line(value):
    with tf.Graph().as_default():
        value = value if value is None else tf.constant(value)
        own = _Given(names=["age"], value=value)
        with pytest.raises(checks.UserError, match="the input 'given_age' of a column must be a t"):
            features.encode_columns([own], {"age": tf.range(6.0)}, None)


def test_variables_live_under_their_column(directory):
    with tf.Graph().as_default():
        features.encode_columns(_columns(), _batch(), features.load_statistics(directory))
        assert sorted(variable.op.name for variable in tf1.global_variables()) == [
            "features/bucketized_age/embedding",
            "features/categorical_job/embedding",
            "features/categorical_tags/embedding",
            "features/crossed_age_x_job/embedding",
            "features/hashed_job/embedding",
        ]


@pytest.mark.medium
def test_gradients_of_every_embedding_are_sparse(directory):
    with tf.Graph().as_default():
        inputs = features.encode_columns(_columns(), _batch(), features.load_statistics(directory))
        loss = tf.add_n([tf.reduce_sum(value**2) for value in inputs.values()])
        gradients = tf1.gradients(loss, tf1.trainable_variables())
        assert len(gradients) == 5
        assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)


def _train(directory, num_steps, in_loop):
    """Steps of plain descent on everything; the embeddings afterwards."""
    with tf.Graph().as_default():
        tf1.set_random_seed(1)

        def step(index):
            inputs = features.encode_columns(
                _columns(), _batch(), features.load_statistics(directory)
            )
            loss = tf.add_n([tf.reduce_sum((value - 1) ** 2) for value in inputs.values()])
            variables = tf1.trainable_variables()
            gradients = tf1.gradients(loss, variables)
            optimizer = tf1.train.GradientDescentOptimizer(0.1)
            update = optimizer.apply_gradients(zip(gradients, variables, strict=True))
            with tf.control_dependencies([update]):
                return index + 1

        def loop():
            return tf.while_loop(lambda index: index < num_steps, step, [0], parallel_iterations=1)

        train = loop() if in_loop else step(tf.constant(0))
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
            random = np.random.default_rng(0)
            training.load(session, tf1.global_variables(), lambda v: random.normal(size=v.shape))
            for _ in range(1 if in_loop else num_steps):
                session.run(train)
            return session.run({v.op.name: v for v in tf1.global_variables()})


@pytest.mark.medium
def test_tracing_in_a_graph_loop_trains_as_single_calls_do(directory):
    looped = _train(directory, 5, in_loop=True)
    single = _train(directory, 5, in_loop=False)
    assert looped.keys() == single.keys()
    for name in looped:
        np.testing.assert_allclose(looped[name], single[name], rtol=1e-5)


def test_a_saved_model_carries_its_vocabulary(directory, tmp_path):
    exported = str(tmp_path / "exported")
    with tf.Graph().as_default():
        fed = {"job": tf1.placeholder(tf.string, [None])}
        columns = [features.Categorical(names=["job"], min_count=1)]
        outputs = features.encode_columns(columns, fed, features.load_statistics(directory))
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
            expected = session.run(outputs, {fed["job"]: _JOBS})
            tf1.saved_model.simple_save(
                session, exported, fed, outputs, legacy_init_op=tf1.tables_initializer()
            )
    shutil.rmtree(directory)
    assert os.listdir(os.path.join(exported, "assets")) == ["vocabulary_categorical_job.txt"]
    served = tf.saved_model.load(exported).signatures["serving_default"]
    restored = served(job=tf.constant(_JOBS.tolist()))
    np.testing.assert_array_equal(restored["categorical_job"], expected["categorical_job"])


def test_fit_is_not_repeated_and_changed_settings_are_missing(directory):
    def batches():
        raise AssertionError("a pass was made")
        yield

    assert features.missing_statistics(_columns(), directory) == []
    features.fit_columns(_columns(), batches(), directory)
    features.fit_columns([features.Hashed(names=["x"], num_buckets=2)], batches(), directory)
    changed = [*_columns()[1:], features.Categorical(names=["job"], min_count=3)]
    assert features.missing_statistics(changed, directory) == ["categorical_job"]


def test_a_fit_that_fails_leaves_nothing_behind(tmp_path):
    columns = [features.Categorical(names=["job"], min_count=1), features.Numeric(names=["age"])]
    batch = {"job": tf.constant(["a"]), "age": tf.constant([float("nan")])}
    with pytest.raises(
        checks.UserError, match="features.numeric_age must be fitted on a finite number"
    ):
        features.fit_columns(columns, [(batch, {})], str(tmp_path / "statistics"))
    assert os.listdir(tmp_path) == []


def test_an_empty_training_split(tmp_path):
    with pytest.raises(checks.UserError, match="the training split must hold an example"):
        features.fit_columns([features.Numeric(names=["age"])], [], str(tmp_path / "statistics"))


def test_statistics_of_one_name_have_one_setting(tmp_path):
    """The later setting would cut the field into its buckets in both columns."""
    columns = [
        features.Crossed(crosses=[["age", "job"]], boundaries={"age": 3}),
        features.Crossed(crosses=[["age", "town"]], boundaries={"age": 20}),
    ]
    with pytest.raises(checks.UserError) as error:
        features.fit_columns(columns, [], str(tmp_path / "statistics"))
    assert str(error.value).startswith("features.crossed_age must be fitted with one setting, got")
    assert str(error.value).endswith("Give one of the columns another prefix.")


@pytest.mark.parametrize(
    "columns, message",
    [
        ([features.Numeric(names=["agee"])], "Did you mean 'age'?"),
        ([features.Crossed(crosses=[["age", "jobb"]])], "Did you mean 'job'?"),
        ([features.Numeric(names=["age"])] * 2, "Give one of the columns another prefix."),
        ([], "features.columns must hold a column"),
        (features.Numeric(names=["age"]), "features.columns must be a list of columns"),
        ([features.Numeric(names=["age"])], "features.numeric_age must be fitted"),
    ],
)
def test_mistakes_in_columns_are_one_line_each(columns, message, tmp_path):
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as error:
        features.encode_columns(columns, _batch(), features.load_statistics(str(tmp_path)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_names_that_are_no_scopes_are_made_so(encode):
    batch = {"capital gain (net)": np.array([1.0, 2.0])}
    assert list(encode([features.Numeric(names=list(batch))], batch)) == [
        "numeric_capital_gain__net_"
    ]
