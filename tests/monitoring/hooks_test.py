import dataclasses
import shutil
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from mtl import distribution
from mtl.monitoring import doubts, hooks
from mtl.step import training_loop
from tests import tiny
from tests.monitoring import sessions

tf1 = tf.compat.v1


def test_a_folder_that_is_made_anew_gets_the_events_of_now(tmp_path):
    summary = tf1.Summary(value=[tf1.Summary.Value(tag="loss", simple_value=3.0)])
    for step in (10, 20):
        with hooks.closing_writers(str(tmp_path / "run")):
            for folder in ("run", "run/eval", "runs"):
                writer = hooks.open_writer(str(tmp_path / folder))
                writer.add_summary(summary, step)
                writer.flush()
        for folder in ("run", "run/eval"):
            assert tiny.scalars(tmp_path / folder) == {(step, "loss"): 3.0}
        shutil.rmtree(tmp_path / "run")
    assert set(tiny.scalars(tmp_path / "runs")) == {(10, "loss"), (20, "loss")}


def test_writers_of_one_second_do_not_overwrite_each_other(tmp_path):
    for step in range(30):  # Several of them are opened in the same second.
        summary = tf1.Summary(value=[tf1.Summary.Value(tag="loss", simple_value=step)])
        with hooks.closing_writers(str(tmp_path)):
            hooks.open_writer(str(tmp_path)).add_summary(summary, step)
    found = tiny.scalars(tmp_path)
    assert list(found) == [(step, "loss") for step in range(30)]


def test_waiting_is_a_share_of_the_time_since_the_last_summary(tmp_path):
    result = types.SimpleNamespace(names=["loss"], summary=None, is_repeated=True)
    hook = hooks.Summaries(result, str(tmp_path), every_steps=10, batch_size=1, writes_graph=False)
    hook.time = types.SimpleNamespace(secs=0.0, waited_secs=0.0)
    with hooks.closing_writers(str(tmp_path)), tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        session.run(tf1.global_variables_initializer())
        hook.begin()
        hook.after_create_session(session, None)
        for step, secs, waited in ((10, 4.0, 3.0), (20, 8.0, 4.0)):
            hook.time.secs, hook.time.waited_secs = secs, waited
            hook.on_step(None, step, np.array([1.0]))
    found = tiny.scalars(tmp_path)
    assert found[10, "input_wait_share"] == 0.75 and found[20, "input_wait_share"] == 0.25
    assert found[20, "steps_per_sec"] == 2.5


@pytest.mark.medium
@pytest.mark.parametrize("steps_per_call", [1, 5])
def test_summaries_hold_the_values_of_their_steps(tmp_path, steps_per_call):
    def make(result):
        return hooks.Summaries(result, str(tmp_path), every_steps=10, batch_size=sessions.BATCH)

    sessions.run(make, 25, steps_per_call)
    found = tiny.scalars(tmp_path)
    assert {step for step, _ in found} == {10, 20}
    speeds = tiny.SPEEDS if steps_per_call > 1 else tiny.SPEEDS[:2]
    assert {tag for _, tag in found} == {"other", "loss", *speeds}
    assert (found[10, "loss"], found[20, "loss"]) == (5.0, 10.0)
    # A step takes 20 ms; the 50 ms between two calls do not count.
    assert 25 < found[20, "steps_per_sec"] <= 50
    speed = found[20, "steps_per_sec"] * sessions.BATCH
    assert found[20, "examples_per_sec"] == pytest.approx(speed)


@pytest.mark.medium
def test_summaries_of_a_run_that_fails_are_there(tmp_path):
    class Failing(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            return tf1.train.SessionRunArgs(tf1.train.get_global_step())

        def after_run(self, run_context, run_values):
            if run_values.results >= 15:
                raise RuntimeError("stop here")

    def make(result):
        return hooks.Summaries(result, str(tmp_path), every_steps=10, batch_size=sessions.BATCH)

    with pytest.raises(RuntimeError, match="stop here"):
        sessions.run(make, 25, others=[Failing()])
    assert tiny.scalars(tmp_path)[10, "loss"] == 5.0


@pytest.mark.medium
@pytest.mark.parametrize("every", [1, 4, 10])
def test_summaries_that_are_fetched_come_at_their_steps(tmp_path, every):
    """In one step a call they are made only where they are due."""
    made = []

    def step(features, labels):
        train_op, monitors = sessions.take_step(features, labels)
        told = tf.numpy_function(lambda n: made.append(int(n)) or n, [features], tf.int64)
        tf1.summary.scalar("told", tf.cast(tf.ensure_shape(told, []), tf.float32))
        return train_op, monitors

    def make(result):
        return hooks.Summaries(result, str(tmp_path), every_steps=every, batch_size=sessions.BATCH)

    sessions.run(make, 12, step=step)
    due = [number for number in range(1, 13) if number % every == 0]
    found = tiny.scalars(tmp_path)
    assert {key: value for key, value in found.items() if key[1] == "told"} == {
        (number, "told"): number for number in due
    }
    assert made == due


@pytest.mark.parametrize("skipped, is_told", [(0, False), (4, False), (5, True), (40, True)])
def test_many_steps_that_were_skipped_are_told_at_the_end(skipped, is_told, tmp_path):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        session.run(tf1.global_variables_initializer())
        names = ("loss", "skipped_steps")
        result = training_loop.StepResult(tf.constant(0), tf.zeros([2]), names)
        hook = hooks.StepHooks(result, [hooks.Skipped(result, tmp_path)])
        hook.after_create_session(session, None)
        # The last call of a run makes no step.
        for values in ([0.7, skipped], [0.0, 0.0]):
            hook.before_run(None)
            hook.after_run(None, types.SimpleNamespace(results=[40, np.float32(values)]))
        hook.end(session)
    told = doubts.read_all_doubts(str(tmp_path))
    assert bool(told) == is_told
    assert not told or told[0].startswith(f"{skipped} of 40 steps were skipped")


class _Kept(hooks.StepHook):
    """Keeps what it is given, and asks for twice the step where that is odd."""

    def __init__(self, result):
        super().__init__(result)
        self.steps, self.ended = [], False
        self._twice = result.step * 2

    def choose_more(self, step):
        return () if self.steps and self.steps[-1][0] % 2 else (self._twice,)

    def on_step(self, run_context, step, values, *more):
        self.steps.append((step, values.tolist(), more))

    def end(self, session):
        self.ended = True


@pytest.mark.medium
def test_hooks_that_share_what_is_fetched_see_what_they_see_alone():
    alone, together = [], []

    def keep(kept, result):
        kept.append(_Kept(result))
        return kept[-1]

    sessions.run(lambda result: keep(alone, result), 4)
    sessions.run(
        lambda result: hooks.StepHooks(result, [keep(together, result) for _ in range(2)]), 4
    )
    for hook in together:
        assert hook.steps == alone[0].steps and hook.ended
        assert hook.time.secs == together[0].time.secs > 0.08
    assert [step for step, *_ in alone[0].steps] == [1, 2, 3, 4]
    assert [more for *_, more in alone[0].steps] == [(2,), (), (6,), ()]


class _Calls(tf1.train.SessionRunHook):
    """Counts the session calls that hooks see."""

    count = 0

    def after_run(self, run_context, run_values):
        self.count += 1


@pytest.mark.medium
@pytest.mark.parametrize("secs, seen", [(60.0, [10, 13, 20, 25]), (0.0, list(range(1, 26)))])
def test_hooks_see_the_steps_at_which_something_is_due_or_a_second_is_over(secs, seen, monkeypatch):
    monkeypatch.setattr(training_loop, "SECS_PER_CALL", secs)
    kept, calls = [], _Calls()

    def make(result):
        kept.append(_Kept(result))
        unseen = hooks.UnseenSteps(last_step=25, due_every=(10,), due_at=(13,))
        return hooks.StepHooks(result, kept, unseen)

    start = time.perf_counter()
    sessions.run(make, 25, others=[calls])
    elapsed = time.perf_counter() - start
    assert [step for step, *_ in kept[0].steps] == seen
    # Each step is made, and its values are its own.
    assert [values for _, values, _ in kept[0].steps] == [[2.0, step / 2] for step in seen]
    assert calls.count == len(seen)
    # Steps of 20 ms are training, seen or not; the 50 ms between two calls are not.
    assert 0.5 < kept[0].time.secs < elapsed - 0.05 * len(seen)


def test_all_steps_are_seen_where_each_takes_longer_than_a_second():
    made = []
    session = types.SimpleNamespace(run=made.append)
    unseen = hooks.UnseenSteps(last_step=25, due_every=(10,))
    assert unseen.take(session, "a step", 12, pace=1.5) == 12 and not made
    assert unseen.take(session, "a step", 12, pace=0.01) == 19
    assert made == ["a step"] * 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Seeing:
    """Notes which steps it sees."""

    seen: list
    every_steps: int = 7

    def __call__(self, steps):
        noted = self.seen

        class Hook(tf1.train.SessionRunHook):
            def before_run(self, run_context):
                return tf1.train.SessionRunArgs(steps.step)

            def after_run(self, run_context, run_values):
                noted.append(int(run_values.results))

        return Hook()


@pytest.mark.medium
@pytest.mark.parametrize("devices", [(), ("/cpu:0", "/cpu:1")], ids=["one", "replicas"])
def test_a_run_without_a_loop_sees_and_learns_what_one_with_it_does(tmp_path, devices, monkeypatch):
    monkeypatch.setattr(training_loop, "SECS_PER_CALL", 600.0)
    found, seen = {}, {}
    for name, steps_per_call in (("loop", 100), ("calls", 1)):
        made = tiny.make(steps_per_call=steps_per_call, summary_steps=20, checkpoint_steps=30)
        strategy = "mirrored" if devices else "none"
        place = distribution.Distribution(strategy=strategy, devices=devices)
        seen[name] = []
        made = dataclasses.replace(made, distribution=place, hooks=[_Seeing(seen=seen[name])])
        found[name] = tiny.train(made, tmp_path / name)
        written = {step for step, tag in tiny.scalars(tmp_path / name) if tag == "loss"}
        assert written == {20, 40}
    # The last call of a loop makes no step.
    assert sorted(set(seen["loop"])) == seen["calls"] == [7, 14, 20, 21, 28, 30, 35, 40]
    for name, value in found["loop"].items():
        np.testing.assert_array_equal(found["calls"][name], value, err_msg=name)


@pytest.mark.medium
def test_callbacks_come_once_before_the_first_step_and_after_each_call():
    steps = []

    def make(result):
        return hooks.Callbacks(lambda: steps.append("started"), lambda: steps.append("called"))

    sessions.run(make, 2)
    assert steps == ["started", "called", "called"]


@pytest.mark.parametrize(
    "losses, weights, start, is_told",
    [
        ((44.0, 1.0), (1.0, 1.0), 0, True),
        ((44.0, 1.0), (0.01, 1.0), 0, False),
        ((44.0, 1.0), (1.0, 1.0), 5, False),
        ((0.7, 1.1), (1.0, 1.0), 0, False),
        ((44.0, -1.0), (1.0, 1.0), 0, False),
        ((float("nan"), 1.0), (1.0, 1.0), 0, False),
    ],
)
def test_a_task_that_makes_up_the_loss_is_told_once(losses, weights, start, is_told, tmp_path):
    names = ("loss", "a/loss", "b/loss", "weight/a", "weight/b")
    model = types.SimpleNamespace(tasks=("a", "b"), loss_names=("a", "b"), adds_losses=True)
    run = types.SimpleNamespace(summary_steps=10, train_steps=40)
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        result = training_loop.StepResult(tf.constant(0), tf.zeros([5]), names)
        hook = hooks.Dominance(result, str(tmp_path), model, run)
        hook.after_create_session(types.SimpleNamespace(run=lambda _: start), None)
        values = np.float32([0.0, *losses, *weights])
        hook.on_step(None, 9, values)
        assert doubts.read_all_doubts(str(tmp_path)) == []
        hook.on_step(None, 10, values)
        told = doubts.read_all_doubts(str(tmp_path))
        hook.on_step(None, 20, np.float32([0, 1, 99, 1, 1]))
    assert doubts.read_all_doubts(str(tmp_path)) == told and len(told) == is_told
    assert not told or told[0].startswith("Task 'a' makes up 44 of the loss of 45 at step 10")


def test_an_auxiliary_loss_that_makes_up_the_loss_is_told(tmp_path):
    names = ("loss", "a/loss", "aux/loss", "weight/a", "weight/aux")
    model = types.SimpleNamespace(tasks=("a",), loss_names=("a", "aux"), adds_losses=True)
    run = types.SimpleNamespace(summary_steps=10, train_steps=40)
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        result = training_loop.StepResult(tf.constant(0), tf.zeros([5]), names)
        hook = hooks.Dominance(result, str(tmp_path), model, run)
        hook.after_create_session(types.SimpleNamespace(run=lambda _: 0), None)
        hook.on_step(None, 10, np.float32([0.0, 1.0, 0.5, 1.0, 1000.0]))
    (told,) = doubts.read_all_doubts(str(tmp_path))
    assert told.startswith("Auxiliary loss 'aux' makes up 500 of the loss of 501 at step 10")


def test_no_time_has_passed_before_the_first_call():
    assert hooks.TrainingTime() == hooks.TrainingTime(secs=0.0, waited_secs=None)
