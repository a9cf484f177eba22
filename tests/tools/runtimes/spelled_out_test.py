"""Operations that other runtimes lack, written with others: both give the same."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import features
from mtl.serving import graphs
from mtl.tools.runtimes import spelled_out

tf1 = tf.compat.v1


def _run(build, dtype, values, rewrite):
    """The values of a graph before and after, and its operations after."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        built = build(tf1.placeholder(dtype, [None], name="given"))
        tf.identity(built, name="found")
        before = session.run("found:0", {"given:0": values})
    rewritten = graphs.Graph(graph.as_graph_def())
    rewrite(rewritten)
    graph_def = rewritten.pruned(["found"])
    with tf.Graph().as_default(), tf1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        after = session.run("found:0", {"given:0": values})
    return before, after, graph_def


def test_logs_keep_the_digits_of_small_numbers():
    values = np.array([0, 1e-30, 1e-8, 1e-4, 0.3, 1, 7, 1e6, 3e38, np.inf, np.nan], np.float32)
    before, after, graph_def = _run(tf.math.log1p, "float32", values, spelled_out.write_logs)
    np.testing.assert_allclose(after, before, rtol=3e-7)
    assert "Log1p" not in {node.op for node in graph_def.node}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("mean", [0.0, 1.7e9 + 0.25, -3e17])
def test_large_integers_need_no_float64(log, mean):
    values = np.array(
        [0, 1, -1, 2**24 + 1, 1_700_000_000, 1_700_000_001, -(2**63), 2**63 - 1, 2**60], np.int64
    )
    entry = {"mean": [np.log1p(abs(mean)) if log else mean], "stddev": [1.0]}
    entry |= {"least": [-9e18], "greatest": [9e18]}
    fitted = features.Statistics(directory="", entries={"numeric_x": entry})
    column = features.Numeric(names=["x"], log=log, missing_flags=True)
    before, after, graph_def = _run(
        lambda given: column({"x": given}, fitted)["numeric_x"],
        "int64",
        values,
        spelled_out.write_float32,
    )
    # Logs of 64 bits round to about 40 / 2^24.
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=5e-6 if log else 0)
    double = tf.float64.as_datatype_enum
    assert not [n for n in graph_def.node for a in n.attr.values() if a.type == double]


def test_other_float64_stays():
    build = lambda given: tf.cast(tf.floor(tf.cast(given, tf.float64) / 3), tf.float32)  # noqa: E731
    values = np.array([2**53 - 1, 7], np.int64)
    before, after, graph_def = _run(build, "int64", values, spelled_out.write_float32)
    np.testing.assert_array_equal(after, before)
    assert "Floor" in {node.op for node in graph_def.node}


@pytest.mark.parametrize("rows", [[], [0, 0, 2], [3, 1, 0, 3]])
def test_sums_over_lists_may_be_empty(rows):
    def build(given):
        values = tf.stack([given, 2 * given], 1)
        return tf.math.unsorted_segment_sum(values, tf.constant(rows, tf.int64), 4)

    def rewrite(graph):
        spelled_out.write_sums(graph, graph.pruned(["found"]))

    values = np.arange(len(rows), dtype=np.float32) + 1
    before, after, graph_def = _run(build, "float32", values, rewrite)
    np.testing.assert_array_equal(after, before)
    assert "UnsortedSegmentSum" not in {node.op for node in graph_def.node}
