import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from mtl.step import draws

tf1 = tf.compat.v1


def test_a_row_draws_the_same_numbers_however_the_batch_is_cut():
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 3
        step = tf1.train.create_global_step()
        whole, other = draws.draw_rows("crop", 12, 5), draws.draw_rows("flip", 12, 5)
        parts = {}
        for count in (2, 3, 12):
            parts[count] = []
            # A number of the graph, as in the loop over slices, too.
            for index in (*range(count - 1), tf.constant(count - 1)):
                with draws.draw_for_slice(index, count):
                    parts[count].append(draws.draw_rows("crop", 12 // count, 5))
                    assert parts[count][-1].shape == (12 // count, 5)
        session.run(tf1.global_variables_initializer())
        expected, found, apart = session.run([whole, parts, other])
        step.load(1, session)
        later = session.run(whole)
    for values in found.values():
        np.testing.assert_array_equal(np.concatenate(values), expected)
    assert len(np.unique([expected, later, apart])) == 3 * 12 * 5
    assert expected.min() >= 0 and expected.max() < 1


@pytest.mark.medium
@pytest.mark.skipif(not tf.test.is_built_with_xla(), reason="TensorFlow is built without XLA")
def test_xla_draws_no_other_numbers():
    def draw():
        drawn = [draws.draw_rows("gibbs", 12, 5), draws.draw_uniform([12, 5], tf.constant([1, 2]))]
        return [2 * tf.tanh(numbers) + 1 for numbers in drawn]

    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        plain = draw()
        with tf.xla.experimental.jit_scope():
            compiled = draw()
        session.run(tf1.global_variables_initializer())
        options, ran = tf1.RunOptions(output_partition_graphs=True), tf1.RunMetadata()
        found = session.run([plain, compiled], options=options, run_metadata=ran)
        ops = {node.op for graph in ran.partition_graphs for node in graph.node}
    assert "_XlaRun" in ops
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_networks_draw_by_functions_that_xla_leaves_alone():
    root = pathlib.Path(draws.__file__).parents[1]
    files = [*(root / "networks").glob("*.py"), root / "layers" / "functions.py"]
    own = [p.name for p in files if re.search(r"tf\.random\.(stateless_)?\w+\(", p.read_text())]
    assert len(files) > 20 and own == []
