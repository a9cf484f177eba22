import dataclasses
import math
import xml.etree.ElementTree as ElementTree

import pytest
import tensorflow as tf

from mtl.balancing import monitored
from mtl.monitoring import event_files
from mtl.tools.drawing import balancing_picture, pictures
from tests import tiny

tf1 = tf.compat.v1

SVG = "{http://www.w3.org/2000/svg}"


def _write(directory, rows, suffix=""):
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(str(directory), filename_suffix=suffix)
        for step, scalars in rows:
            values = [tf1.Summary.Value(tag=tag, simple_value=x) for tag, x in scalars.items()]
            writer.add_summary(tf1.Summary(value=values), step)
        writer.close()


def test_reads_what_concerns_the_balance(tmp_path):
    first = {"weight/a": 1.0, "weight/b/c": 2.0, "loss": 3.0, "a/loss": 4.0, "weights/a": 5.0}
    _write(tmp_path, [(10, first), (20, {"surgery/cosine/a/b": -0.5, "surgery/conflicts": 1.0})])
    _write(tmp_path, [(30, {"top/surgery/norm/a": 2.0, "surgery/weight/a": math.nan})], ".2")
    _write(tmp_path, [(10, {"weight/a": 7.0}), (40, {"weight/a": 8.0})], ".3")
    assert balancing_picture.group(_read(tmp_path)) == {
        ("", "weight"): {"a": {10: 7.0, 40: 8.0}, "b/c": {10: 2.0}},
        ("", "surgery/cosine"): {"a/b": {20: -0.5}},
        ("", "surgery/conflicts"): {"all": {20: 1.0}},
        ("top", "surgery/norm"): {"a": {30: 2.0}},
    }


def test_a_file_that_breaks_off_is_read_up_to_there(tmp_path):
    _write(tmp_path, [(10, {"weight/a": 1.0}), (20, {"weight/a": 2.0})])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    _write(tmp_path, [(30, {"weight/a": 3.0})], ".2")
    assert balancing_picture.group(_read(tmp_path)) == {("", "weight"): {"a": {10: 1.0, 30: 3.0}}}


def _read(path):
    return event_files.read_record(str(path)).curves


def _texts(path):
    return [element.text for element in ElementTree.parse(path).iter(f"{SVG}text")]


def test_nothing_is_drawn_of_nothing(tmp_path):
    assert pictures.write(str(tmp_path), _read(tmp_path)) == []
    assert not list(tmp_path.iterdir())


def test_draws_the_matrix(tmp_path):
    late = {"surgery/cosine/a/b": 0.5, "surgery/cosine/a/c": -0.25, "surgery/cosine/b/c": 0.0}
    early = dict.fromkeys(late, 1.0)
    _write(tmp_path, [(100, early), (1000, early), (3100, late), (4100, late)])
    (path,) = pictures.write(str(tmp_path), _read(tmp_path))
    texts = _texts(path)
    start = texts.index("task")
    assert texts[start - 1 : start + 7] == ["other task", "task", *"abc", *"abc"]
    assert texts[start + 7 : start + 16] == [
        *("1.00", "0.50", "-0.25"),
        *("0.50", "1.00", "0.00"),
        *("-0.25", "0.00", "1.00"),
    ]


@pytest.mark.slow
def test_a_run_leaves_its_picture(tmp_path):
    made = tiny.make()
    model = dataclasses.replace(made.model, surgery=monitored.Monitored(every_steps=10))
    tiny.train(dataclasses.replace(made, model=model), tmp_path)
    texts = _texts(tmp_path / "balancing.svg")
    assert {"weights of the losses", "norms of the gradients", "sign/kind"} <= set(texts)
