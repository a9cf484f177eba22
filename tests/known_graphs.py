"""Spares a training the graph of evaluation that it builds first, where an equal one was built.

A run builds that graph to refuse what is wrong before the first step: a quarter of the time of
trainings as short as those of tests, which mostly train one experiment several times.
"""

from typing import Any

from mtl import model as model_lib
from mtl.data import pipeline
from mtl.runs import fitting, preparation

_build = preparation._evaluation_graph
_known: dict[str, Any] = {}


def leave_out() -> None:
    """For all trainings of this process, and its forks."""
    preparation._evaluation_graph = _build_once


def _build_once(
    data: pipeline.Pipeline, model: model_lib.MultiTaskModel, model_dir: str
) -> tuple[list[str], list[str]]:
    statistics = fitting.load_statistics(model_dir)
    key = repr((data.spec, data.eval_split, model, statistics.entries))
    if key not in _known:
        _known[key] = _build(data, model, model_dir)
    return _known[key]
