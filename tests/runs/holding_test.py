"""Every verb that reads a checkpoint holds it, so that a training beside does not drop it."""

import contextlib
import dataclasses

import pytest

from mtl import verbs
from mtl.checkpoints import run_directory
from mtl.files import in_work
from mtl.runs import diagnosis, evaluation
from mtl.sparsity import pruning, pruning_schedules
from mtl.tools.debugging import inspection
from mtl.tools.explaining import explanation, settings
from mtl.tools.reports import report
from tests import tiny

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("held") / "run")
    made = tiny.make(train_steps=4, checkpoint_steps=2, keep_checkpoints=9)
    tiny.train(made, folder)
    return made, folder


def _prune(made, folder):
    part = pruning.Pruning(sparsity=0.5, schedule=pruning_schedules.OneShot())
    model = dataclasses.replace(made.model, pruning=[part])
    verbs.prune(dataclasses.replace(made, model=model), folder, f"{folder}_pruned")


def _inspect(made, folder):
    with inspection.open_graph(made, folder, inspection.read_split(made, "test", 2), "eval"):
        pass


def _score(made, folder):
    with verbs.open_scorer(made, folder):
        pass


VERBS = {
    "evaluate": evaluation.evaluate,
    "predict": lambda made, folder: next(verbs.predict(made, folder)),
    "score": _score,
    "export": lambda made, folder: verbs.export(made, folder, f"{folder}/export/manual"),
    "explain": lambda made, folder: explanation.explain_run(made, folder, settings.Settings()),
    "inspect": _inspect,
    "prune": _prune,
    "clip_audit": verbs.audit_clipping,
    "report": lambda made, folder: report.describe_run(made, folder, 8),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_checkpoint_is_held_while_it_is_read(verb, trained, monkeypatch):
    class EnoughError(Exception):
        pass

    @contextlib.contextmanager
    def look(data, model, checkpoint, *splits):
        if checkpoint is None:  # Rows are read before the checkpoint is opened.
            yield
            return
        kept = run_directory.list_checkpoints(trained[1])
        read = kept if verb == "clip_audit" else [checkpoint]
        assert checkpoint == kept[-1]
        assert [in_work.is_abandoned(f"{path}.index") for path in read] == [False] * len(read)
        raise EnoughError

    monkeypatch.setattr(diagnosis, "explain_run_errors", look)
    with pytest.raises(EnoughError):
        VERBS[verb](*trained)
    monkeypatch.undo()
    for path in run_directory.list_checkpoints(trained[1]):
        assert in_work.is_abandoned(f"{path}.index"), "It is held no longer."
