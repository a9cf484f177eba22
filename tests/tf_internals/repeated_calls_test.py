"""Prepared session calls return and raise what calls of TensorFlow do."""

import collections

import pytest
import tensorflow as tf

from mtl.tf_internals import repeated_calls

tf1 = tf.compat.v1
Pair = collections.namedtuple("Pair", ("first", "second"))


@pytest.fixture
def sessions():
    """Yield a session with prepared calls and a plain session, on the same graph."""
    with tf.Graph().as_default(), tf1.Session() as plain, tf1.Session() as prepared:
        repeated_calls.prepare(prepared)
        yield prepared, plain


@pytest.mark.parametrize("times", [1, 3])
def test_values_come_in_the_structure_of_the_fetches(sessions, times):
    given = tf1.placeholder_with_default(2.0, [])
    one, two = given + 1, given * 5
    hook = object()
    structures = [
        one,
        [one, two, one],
        (two, one),
        Pair(two, [one]),
        {"caller": [one.op, two], hook: [two, one], "none": []},
        collections.OrderedDict(second=two, first=one),
        tf.sparse.from_dense([one, 0.0]),
        "add:0",
    ]
    for prepared, plain in [[s.run for s in sessions]] * times:
        for fetches in structures:
            found = prepared(fetches)
            assert found == plain(fetches) and type(found) is type(plain(fetches)), fetches
        # These calls differ only in fetches and feeds.
        assert prepared([one, two]) == [3.0, 10.0] and prepared([two, one]) == [10.0, 3.0]
        assert prepared([one], {given: 7.0}) == [8.0]
        assert prepared([one]) == [3.0]


def test_a_tensor_within_a_loop_is_refused_as_before(sessions):
    inside = []
    tf.while_loop(lambda i: i < 2, lambda i: inside.append(i + 1) or inside[0], [0])
    raised = []
    for session in sessions:
        with pytest.raises((TypeError, ValueError)) as caught:
            session.run([inside[0]])
        raised.append(caught.value)
    assert type(raised[0]) is type(raised[1]) and str(raised[0]) == str(raised[1])


def test_a_handle_to_a_tensor_is_one(sessions):
    handle = tf1.get_session_handle(tf1.placeholder_with_default(2.0, []) + 1)
    assert [session.run([handle])[0].eval() for session in sessions] == [3.0, 3.0]


def test_errors_name_the_operation_that_failed(sessions):
    broken = tf.debugging.check_numerics(tf1.placeholder_with_default(0.0, []) / 0.0, "odd")
    raised = []
    for session in sessions:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run([broken])
        raised.append(caught.value)
    prepared, plain = raised
    assert prepared.op is plain.op is broken.op and prepared.message == plain.message
    assert prepared.message.startswith("Graph execution error")


def test_a_trace_is_written_when_it_is_asked_for(sessions):
    tensor = tf1.placeholder_with_default(2.0, []) + 1
    metadata, options = tf1.RunMetadata(), tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    for chosen, is_traced in ((tf1.RunOptions(), False), (options, True)):
        assert sessions[0].run([tensor], options=chosen, run_metadata=metadata) == [3.0]
        assert bool(metadata.step_stats.dev_stats) == is_traced


def test_fetches_without_end_are_not_kept(sessions, monkeypatch):
    made = []
    prepared = sessions[0]
    make = prepared._make_callable_from_options
    record = lambda options: made.append(1) or make(options)  # noqa: E731
    monkeypatch.setattr(prepared, "_make_callable_from_options", record)
    tensors = [tf1.placeholder_with_default(float(i), []) for i in range(80)]
    for _ in range(2):
        assert [prepared.run(tensor) for tensor in tensors] == list(range(80))
    assert len(made) == 64
