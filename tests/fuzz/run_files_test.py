"""Damaged files of a run are read as they were written, or refused in one line."""

import contextlib
import fcntl
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import checkpoints, checks, features
from mtl.checkpoints import given_files, input_state, lock, run_directory
from mtl.configs import config
from mtl.files import atomic, checksums
from mtl.monitoring import doubts, event_files
from mtl.runs import fitting
from mtl.tools.drawing import balancing_picture
from mtl.variables import row_names
from tests import tiny
from tests.fuzz import cases

tf1 = tf.compat.v1
WORDS = b"red\ngreen\nblue\n"
CONFIG = b"# A comment\nRun.train_steps = 2\nRun.seed = 1\n"
WEIGHTS = {"global_step": np.int64(2), "a/kernel": np.float32([[1, 2], [3, 4]])}
BEST = checkpoints.Best(metric="loss", higher_is_better=False, patience=2)
SPLICE = (b"{", b"}", b"null", b'"', b"[]", b"-1", b"1e999", b"NaN", b"\n", b"\0", b"\xff", b"../x")


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    """A run as training writes it, by the functions that training calls, in a second."""
    run = tmp_path_factory.mktemp("run")
    made = tiny.make(
        columns=[features.Numeric(names=["x"]), features.Categorical(names=["word"], dimension=2)]
    )
    fitting.fit_statistics(made.data, made.model, None, str(run))
    row_names.save(made.model.row_names(fitting.load_statistics(str(run))), str(run))
    (run / "words.txt").write_bytes(WORDS)
    given_files.keep_checksums({"features/x": str(run / "words.txt")}, str(run), is_new=True)
    doubts.record_doubts(str(run), "data", ["Field 'age' never varies."])
    atomic.write(str(run / "config.gin"), config._sealing(CONFIG) + b"\n" + CONFIG)
    with tf.Graph().as_default(), tf1.Session() as session:
        made = [tf1.get_variable(name, initializer=value) for name, value in WEIGHTS.items()]
        session.run(tf1.global_variables_initializer())
        for step in (1, 2):
            session.run(made[0].assign(step))
            path = tf1.train.Saver().save(session, str(run / "model.ckpt"), step, write_state=False)
            run_directory.add_checkpoint(path, keep=3)
            metrics = {"loss": 0.5 * step, "global_step": step}
            checkpoints.BestKeeper(BEST, str(run)).update(path, metrics)
        with _watched(str(run)) as (state, session, _):
            state.save(session, 2)
    with tf.io.TFRecordWriter(str(run / "events.out.tfevents.1.x")) as writer:
        for step in range(3):
            event = tf1.Event(step=step, summary=tf1.Summary())
            event.summary.value.add(tag="weight/sign", simple_value=0.25 * step)
            writer.write(event.SerializeToString())
    (run / lock.FILE).write_bytes(lock._describe_holder())
    return run


@contextlib.contextmanager
def _watched(run):
    """Yield the state of an input of numbers, a new session, and the next number."""
    with tf.Graph().as_default():
        iterator = tf1.data.make_initializable_iterator(tf.data.Dataset.range(100).shuffle(9, 1))
        following = iterator.get_next()
        state = input_state.InputState(run, "settings")
        state.watch(iterator)
        with tf1.Session() as session:
            session.run(iterator.initializer)
            yield state, session, following


def _statistics(run):
    entries = fitting.load_statistics(run).entries
    vocabulary = next(entry["file"] for entry in entries.values() if "file" in entry)
    return entries, pathlib.Path(run, "statistics", vocabulary).read_bytes()


def _names(run):
    return {
        scope: (row_names.read_names(names), names.axis)
        for scope, names in row_names.load(run).items()
    }


def _best(run):
    keeper = checkpoints.BestKeeper(BEST, run)
    record = keeper.read()
    decisions = [keeper.is_best({"loss": loss, "global_step": 9}) for loss in (0.1, 0.7)]
    found = record, decisions, keeper.last_step, keeper.should_stop()
    keeper.rewind(1)
    keeper.update(f"{run}/model.ckpt-2", {"loss": 0.1, "global_step": 9})
    return found


def _checkpoint(run):
    path = run_directory.find_latest(run)
    assert path == run_directory.checkpoint_path(run, "latest")
    run_directory.require_intact(path)
    reader = tf.train.load_checkpoint(path)
    values = {name: reader.get_tensor(name).tolist() for name in reader.get_variable_to_shape_map()}
    return run_directory.step_of(run), values


def _repaired(run):
    run_directory.repair_run(run)
    return _checkpoint(run)


def _input(run):
    with _watched(run) as (state, session, following):
        return state.restore(session, 2) and session.run([following] * 3)[0].tolist()


def _given(run):
    return given_files.check_unchanged({"features/x": f"{run}/words.txt"}, run).keys()


def _locked(run):
    lock.require_free(run)
    with pytest.raises(checks.UserError) as refused, open(f"{run}/{lock.FILE}") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lock.require_free(run)
    cases.refused(refused.value)


def _balancing(run):
    return balancing_picture.group(event_files.read_record(run).curves)


# {file of a run: its readers}. A reader refuses a damaged file, or returns the written content.
READERS = {
    "statistics/statistics.json": (_statistics,),
    "statistics/vocabulary_categorical_word.txt": (_statistics, _names),
    "row_names.json": (_names,),
    "given_files.json": (_given,),
    "words.txt": (_given,),
    "best/best.json": (_best,),
    "config.gin": (lambda run: config.read(config.saved_in(run)),),
    "model.ckpt-2.index": (_checkpoint, _repaired),
    "model.ckpt-2.data-00000-of-00001": (_checkpoint, _repaired),
    "checkpoint": (_checkpoint, _repaired),
    "input/*.data-*": (_input,),
    "input/*.index": (_input,),
    "input/*.checksums": (_input,),
    "warnings.json": (doubts.read_all_doubts,),
    "events.out.tfevents.1.x": (_balancing,),
    lock.FILE: (_locked,),
}
# Readers that may return other content, because no training depends on these files. A damaged
# list of checkpoints may also name an earlier checkpoint.
LENIENT = (doubts.read_all_doubts, _balancing, _locked)


def _also_right(read, name, data, found) -> bool:
    """Return True if a reader may find this instead of the content of the whole file."""
    if read in LENIENT or name == "checkpoint":
        return True
    if name.endswith(".json") and f'"{checksums.KEY}"'.encode() not in data:
        return True  # As of an earlier version, which wrote no checksums.
    if read is _repaired:
        return found[0] == 1  # The one before it.
    if name == "config.gin":  # Without its checksum it is a user's own.
        return found.encode() == data and not data.startswith(config._SEAL)
    return False


@pytest.mark.medium
def test_a_damaged_file_is_read_as_it_was_or_refused(run, tmp_path):
    whole = {}
    for name, readers in READERS.items():
        for read in readers:
            copy = shutil.copytree(run, tmp_path / "whole")
            whole[name, read] = read(str(copy))
            shutil.rmtree(copy)

    def case(draw):
        name = draw.choice(sorted(READERS))
        read = draw.choice(READERS[name])
        copy = pathlib.Path(shutil.copytree(run, tmp_path / "copy"))
        try:
            (path,) = copy.glob(name)
            data = cases.damaged(draw, path.read_bytes(), SPLICE)
            path.write_bytes(data)
            found = read(str(copy))
        except checks.UserError as error:
            line = cases.refused(error)
            assert str(copy) in line, line
            return "refused"
        finally:
            shutil.rmtree(copy)
        same = found == whole[name, read]
        assert same or _also_right(read, name, data, found), (name, read, data[:300], found)
        return "right"

    outcomes = cases.run("run files", 100, case)
    assert outcomes["right"] and outcomes["refused"]
