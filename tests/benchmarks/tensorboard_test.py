import os

import pytest
import tensorflow as tf

from benchmarks import tensorboard as benchmark
from mtl import verbs
from mtl.tools import tensorboard


@pytest.mark.medium
def test_a_timed_evaluation_shows_its_item(tmp_path):
    folder = str(tmp_path)
    verbs.train(benchmark.make(None, 10, 10, 10), folder)
    made = benchmark.make(tensorboard.TensorBoard(roc_curves=True), 10, 10, 10)
    assert benchmark._time_evaluation(made, folder) > 0
    paths = [entry.path for entry in os.scandir(tmp_path / "eval") if "events." in entry.name]
    events = [event for path in paths for event in tf.compat.v1.train.summary_iterator(path)]
    tags = {value.tag for event in events for value in event.summary.value}
    assert any("roc_curves" in tag for tag in tags), tags
