"""The rule that finds the op, its line, its rows, on graphs of a few ops."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.tf_internals import debugger
from mtl.tools.debugging import findings, origin, roots, rows, step_dump

pytestmark = pytest.mark.keeps_op_stacks

tf1 = tf.compat.v1
BATCH = 4


class Step:
    """Runs a graph once for each batch, and reads the tensors of the last two calls."""

    def __init__(self, build, folder, *batches):
        self.dumps = []
        with tf.Graph().as_default() as self.graph:
            dataset = tf.data.Dataset.from_tensor_slices(np.float32(batches))
            iterator = tf1.data.make_initializable_iterator(dataset)
            loss = build(iterator.get_next())
            self.losses = {"task": loss.name}
            config = debugger.plain_session(tf1.ConfigProto())
            with tf1.Session(config=config) as session:
                session.run([iterator.initializer, tf1.global_variables_initializer()])
                for index, _ in enumerate(batches):
                    path = str(folder / str(index))
                    session.run(loss, options=debugger.watch_tensors(self.graph, path))
                    self.dumps.append(step_dump.StepDump(path))

    def find(self, has_before=True):
        before = self.dumps[-2] if has_before else None
        return roots.find_roots(self.dumps[-1], before, self.losses)


GOOD = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
ZERO = [[1.0, 2.0], [3.0, 0.0], [5.0, 6.0], [7.0, 8.0]]


@pytest.mark.parametrize("has_before", [True, False])
def test_the_op_that_made_it_is_named_and_not_what_came_of_it(has_before, tmp_path):
    def build(batch):
        return tf.reduce_sum(tf.square(tf.math.log(batch, name="here")) + 1.0)

    step = Step(build, tmp_path, GOOD, ZERO)
    (root,) = step.find(has_before)
    assert (root.node.name, root.node.kind, root.reaches_loss) == ("here", "Log", True)
    assert rows.find_rows(step.dumps[-1], root, BATCH).numbers == (1,)
    place = origin.find_origin(step.graph, "here")
    assert "roots_test.py:" in place.lines[0] and "in build: " in place.lines[0]
    assert 'tf.math.log(batch, name="here")' in place.lines[0]


def test_what_has_no_effect_or_was_so_before_is_no_root(tmp_path):
    def build(batch):
        masked = tf.where(batch > 0, tf.math.log(batch), tf.zeros_like(batch))
        return tf.reduce_sum(masked)

    assert Step(build, tmp_path / "masked", GOOD, ZERO).find() == []
    assert Step(lambda b: tf.reduce_sum(tf.math.log(b)), tmp_path / "same", ZERO, ZERO).find() == []
    healthy = Step(lambda b: tf.reduce_sum(tf.math.log(b)), tmp_path / "healthy", GOOD, GOOD)
    assert healthy.find() == []


@pytest.mark.medium
def test_an_op_in_a_branch_or_a_loop_keeps_its_line(tmp_path):
    def build(batch):
        def inside(index, total):
            return index + 1, total + tf.reduce_sum(tf.math.log(batch[index]))

        ends = tf.while_loop(lambda index, _: index < BATCH, inside, [0, 0.0])
        return tf.cond(ends[1] > -1e9, lambda: ends[1] * 2, lambda: tf.math.rsqrt(ends[1] * 0))

    step = Step(build, tmp_path, GOOD, ZERO)
    first = step.find()[0]
    assert first.node.kind == "Log" and "/body/_" in first.node.name
    assert "tf.math.log(batch[index])" in origin.find_origin(step.graph, first.node.name).lines[0]


@pytest.mark.parametrize("slices", [1, 2])
def test_rows_in_a_loop_of_the_model_are_those_of_the_batch(slices, tmp_path):
    def build(batch):
        def inside(index, total):
            return index + 1, total + tf.math.log(batch[: BATCH // slices], name="here")

        with tf.name_scope("network"):
            start = tf.zeros([BATCH // slices, 2])
            return tf.reduce_sum(tf.while_loop(lambda i, _: i < 3, inside, [0, start])[1])

    step = Step(build, tmp_path, GOOD, ZERO)
    (root,) = step.find()
    assert root.node.name.startswith("network/while/body/_")
    assert rows.find_rows(step.dumps[-1], root, BATCH, slices).numbers == (1,)


def test_a_loop_may_change_the_length_of_its_tensors(tmp_path):
    def build(batch):
        def inside(index, values):
            return index + 1, tf.concat([1 + tf.abs(tf.math.log(values)), [[1.0, 1.0]]], 0)

        shapes = [tf.TensorShape([]), tf.TensorShape([None, 2])]
        ends = tf.while_loop(lambda i, _: i < 2, inside, [0, batch], shapes)
        return tf.reduce_sum(ends[1])

    step = Step(build, tmp_path, GOOD, ZERO)
    (root, *_) = step.find()
    assert root.node.kind == "Log"
    assert rows.find_rows(step.dumps[-1], root, BATCH).numbers == (1,)


def test_a_kernel_with_as_many_rows_as_the_batch_has_no_rows(tmp_path):
    def build(batch):
        kernel = tf1.get_variable("kernel", [2, BATCH], initializer=tf1.ones_initializer())
        products = tf.matmul(batch, kernel)
        return tf.reduce_sum(tf.matmul(products, products, transpose_a=True))

    of_rows = rows.list_of_rows(Step(build, tmp_path, GOOD).dumps[-1], BATCH)
    assert {"MatMul:0", "IteratorGetNext:0"} <= of_rows
    assert not {"MatMul_1:0", "MatMul/ReadVariableOp:0"} & of_rows


@pytest.mark.parametrize(
    "mix",
    [
        lambda b: tf.gather(b, tf.argsort(b[:, 0], direction="DESCENDING")),
        lambda b: tf.gather(b, tf.constant([3, 2, 1, 0])),
        lambda b: tf.concat([b, b], 0),
        lambda b: tf.concat([b, b], -2),
        lambda b: tf.tile(b, [2, 1]),
        lambda b: tf.reverse(b, [0]),
        lambda b: tf.cumsum(b, exclusive=True),
        lambda b: tf.gather_nd(b, [[3], [2], [1], [0]]),
        lambda b: tf.math.top_k(b[:, 1], 4).values,
        lambda b: tf.random.shuffle(b),
    ],
)
def test_rows_that_are_permuted_or_joined_are_none_of_the_batch(mix, tmp_path):
    step = Step(lambda b: tf.reduce_sum(tf.math.log(mix(b))), tmp_path, ZERO)
    (root,) = step.find(has_before=False)
    assert root.output not in rows.list_of_rows(step.dumps[-1], BATCH)
    assert not rows.find_rows(step.dumps[-1], root, BATCH).numbers


@pytest.mark.parametrize(
    "keep",
    [
        lambda b: tf.gather(tf.constant([[9.0], [1.0], [2.0]]), tf.cast(b[:, 1] > 0, tf.int32)),
        lambda b: tf.gather(b, [1, 0], axis=1),
        lambda b: tf.gather(b, tf.argsort(b), batch_dims=1),
        lambda b: tf.concat([b, b], 1),
        lambda b: tf.tile(b, [1, 2]),
        lambda b: tf.reverse(b, [-1]),
        lambda b: tf.math.top_k(b, 2).values,
    ],
)
def test_rows_that_keep_their_place_are_those_of_the_batch(keep, tmp_path):
    dump = Step(lambda b: tf.reduce_sum(tf.identity(keep(b), "here")), tmp_path, ZERO).dumps[-1]
    assert dump.nodes["here"].inputs[0] in rows.list_of_rows(dump, BATCH)


@pytest.mark.parametrize(
    "build, batch, cause",
    [
        (lambda b: tf.math.log(tf.cast(b, tf.float16)), ZERO, "the logarithm of 0"),
        (lambda b: tf.exp(10 * tf.cast(b, tf.float16)), GOOD, "overflow of the exponential of 80"),
        (lambda b: tf.square(40 * tf.cast(b, tf.float16)), GOOD, "overflow of float16, whose"),
        (lambda b: tf.square(1e19 * tf.cast(b, tf.bfloat16)), GOOD, "overflow of bfloat16: its"),
        (lambda b: tf.math.log1p(-b), GOOD, "the logarithm of a number below 0"),
        (lambda b: tf.math.log1p(-b), [[1.0, 0.5]] * 4, "the logarithm of 0"),
        (lambda b: tf.atanh(b), [[1.0, 0.5]] * 4, "infinity from finite numbers: its largest"),
        (lambda b: tf.acos(b), GOOD, "NaN from finite numbers: its largest input is 8"),
        (lambda b: tf.pow(1e30 * b, [[0.0, 2.0]]), GOOD, "overflow of float32: its largest"),
        (lambda b: tf.pow(1e30 * b, [[-1.0, 2.0]]), GOOD, "overflow of float32: its largest"),
        (lambda b: tf.pow(b, -1.0), ZERO, "0 to a power below 0"),
        (lambda b: tf.pow(b - 4, 0.5), GOOD, "a root of a number below 0"),
        (lambda b: tf.math.xlogy(b, b - 4), [[0.0, 1.0]] * 4, "the logarithm of a number below 0"),
        (lambda b: tf.math.xlogy(b + 1, b), ZERO, "the logarithm of 0"),
    ],
)
def test_the_cause_is_what_the_op_was_given(build, batch, cause, tmp_path):
    step = Step(lambda b: tf.reduce_sum(tf.cast(build(b), tf.float32)), tmp_path, batch)
    dump = step.dumps[-1]
    (root,) = step.find(has_before=False)
    inputs = [s for t in root.node.inputs if (s := findings.summarize_tensor(dump, None, t))]
    assert findings.explain(root.node.kind, dump, root, inputs, "", {}).startswith(cause)


def test_values_are_summed_up_and_compared_with_the_step_before(tmp_path):
    step = Step(lambda b: tf.reduce_sum(1.0 / b), tmp_path, GOOD, ZERO)
    now, before = step.dumps[-1], step.dumps[-2]
    (root,) = step.find()
    found = findings.summarize_tensor(now, before, root.output)
    assert (found.kind, found.shape, found.bad, found.zeros) == ("float32", (4, 2), 1, 0)
    assert found.greatest_before == 1.0
    given = findings.summarize_tensor(now, None, root.node.inputs[1])
    assert (given.least, given.greatest, given.zeros, given.bad) == (0.0, 8.0, 1, 0)


@pytest.mark.parametrize(
    "values, expected",
    [
        ([[1.0], [2.0], [3.0], [4000.0]], [3]),
        ([[0.0], [0.0], [0.0], [1.0]], []),  # Most rows of a sparse tensor are 0.
        ([[1.0], [2.0], [np.nan], [4.0]], [2]),
        ([[1.0], [2.0], [3.0], [40.0]], []),
    ],
)
def test_rows_that_stand_out(values, expected):
    assert np.flatnonzero(rows.stand_out(np.array(values))).tolist() == expected
