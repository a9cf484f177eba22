"""Epochs of the sources of a mixture on several workers with parameter servers."""

import dataclasses
import functools

import pytest

from mtl import checks, distribution, types
from mtl.data import mixture
from mtl.distribution import settings, tf_config
from mtl.optimization import schedules
from mtl.runs import evaluation_graph, preparation, source_epochs
from tests import tiny

ADDRESSES = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


def _find_place(servers, **roles):
    jobs = ADDRESSES | ({"ps": ["d:1"]} if servers else {})
    cluster = tf_config.Cluster(jobs=jobs, **{"job": "chief", "index": 0, **roles})
    strategy = distribution.SERVERS if servers else distribution.WORKERS
    return settings.Place(strategy, ("/cpu:0",), cluster)


def _make(**rates):
    made = tiny.make(train_steps=30)
    few = tiny.Rows(splits={"train": tiny.rows(40, seed=5), "test": tiny.rows(20, seed=6)})
    source = mixture.Mixture(sources={"first": made.data.source, "second": few}, rates=rates)
    data = dataclasses.replace(made.data, source=source, batch_size=24)
    return dataclasses.replace(made, data=data)


def _observe(made, place):
    run = types.ObservedRun(experiment=made, model_dir="", place=place, part=None)
    return source_epochs.observe(run)


def test_a_step_of_an_asynchronous_worker_has_its_part_of_a_batch():
    made = _make(first=3, second=1)
    for servers, step_size in ((True, 8), (False, 24)):
        observer = _observe(made, _find_place(servers))
        observer.change_data(made.data)
        (hook,) = observer.build_hooks(None, None).of_steps
        assert hook._count(20) == {"first": step_size * 15 / 96, "second": step_size * 5 / 40}


@pytest.mark.medium
def test_the_start_of_a_run_counts_the_rows_of_asynchronous_steps(tmp_path, caplog):
    caplog.set_level("INFO")
    made = _make(first=3, second=1)
    build = functools.partial(evaluation_graph.EvaluationGraph, made, str(tmp_path))
    preparation.prepare_run(made, str(tmp_path), build, _find_place(True))
    assert "25.0% of the examples: 1.50 epochs in 30 steps" in caplog.text


def test_a_schedule_of_rates_is_refused_for_several_asynchronous_workers():
    made = _make(first=1, second=schedules.Polynomial(value=0.1, decay_steps=20))
    message = "Mixture.rates must be numbers for several workers with parameter servers"
    for roles in ({}, {"job": "worker", "index": 1}):
        with pytest.raises(checks.UserError, match=message):
            _observe(made, _find_place(True, **roles))
    _observe(made, _find_place(False))
    _observe(made, settings.ALONE)
