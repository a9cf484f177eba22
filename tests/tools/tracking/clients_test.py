"""Fake clients of MLflow and W&B get a run and its metrics; tests/clients has real clients."""

import sys
import types as python_types

import pytest

from mtl import checks, types
from mtl.tools import tracking
from mtl.tools.tracking import mlflow

PARAMETERS = {f"model.heads[a].n{i}": str(i) for i in range(150)}
RUN = types.RunDescription("a", "runs/a", parameters=PARAMETERS)


class _Client:
    """A fake client of MLflow, with a single run."""

    def __init__(self, tracking_uri=None):
        self.calls = []
        self.known = {}

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return f"id of {name}"

    def create_run(self, experiment, run_name, tags):
        self.calls.append(("create_run", experiment, run_name, tags))
        info = python_types.SimpleNamespace(run_id="r1")
        return python_types.SimpleNamespace(info=info)

    def get_run(self, run_id):
        data = python_types.SimpleNamespace(params=self.known)
        return python_types.SimpleNamespace(data=data)

    def __getattr__(self, name):
        return lambda *args, **given: self.calls.append((name, *args, given))


@pytest.fixture
def client(monkeypatch):
    made = _Client()
    entities = python_types.SimpleNamespace(
        Param=lambda name, value: (name, value),
        Metric=lambda name, value, time, step: (name, value, step),
    )
    module = python_types.SimpleNamespace(MlflowClient=lambda tracking_uri: made, entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return made


def test_mlflow_begins_a_run_with_all_parameters(client):
    run = tracking.MLflow(experiment="digits", tags={"who": "me"}).start(RUN)
    assert run.run_id == "r1"
    tags = {"mtl.model_dir": "runs/a", "who": "me"}
    assert client.calls[0] == ("create_run", "id of digits", "a", tags)
    batches = [call[-1]["params"] for call in client.calls if call[0] == "log_batch"]
    assert [len(batch) for batch in batches] == [100, 50]
    # MLflow allows no brackets in names.
    assert dict(sum(batches, []))["model.heads_x5ba_x5d.n7"] == "7"


def test_mlflow_goes_on_and_tells_what_has_changed(client):
    client.known = {mlflow._spell(name): value for name, value in PARAMETERS.items()}
    client.known["model.heads_x5ba_x5d.n7"] = "8"
    given = types.RunDescription("a", "runs/a", parameters=PARAMETERS, run_id="r7")
    run = tracking.MLflow().start(given)
    run.log(500, {"train/loss": 0.5})
    run.end(types.KILLED)
    assert [call[:4] for call in client.calls if call[0] != "log_batch"] == [
        ("update_run", "r7", {"status": "RUNNING"}),
        ("set_tag", "r7", "changed/model.heads_x5ba_x5d.n7", "7"),
        ("set_terminated", "r7", "KILLED", {}),
    ]
    (logged,) = [call for call in client.calls if call[0] == "log_batch"]
    assert logged == ("log_batch", "r7", {"metrics": [("train/loss", 0.5, 500)]})


def test_what_is_added_later_leaves_the_state_of_the_run(client):
    run = tracking.MLflow().start(types.RunDescription("a", "runs/a", run_id="r7"))
    run.add_file(__file__, "")
    run.end(None)
    assert client.calls == [("log_artifact", "r7", __file__, None, {})]


@pytest.mark.parametrize(
    "uri",
    ["https://me:s3cr3t@ss@host:5000/x", "https://s3cr3t@host:5000/x", "x://:s3cr3t@host:5000/x"],
)
def test_a_password_is_refused_and_that_of_the_environment_not_kept(uri, monkeypatch):
    with pytest.raises(checks.UserError, match="MLFLOW_TRACKING_PASSWORD") as error:
        tracking.MLflow(tracking_uri=uri)
    assert "s3cr3t" not in str(error.value) and "***@host:5000/x" in str(error.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert tracking.MLflow(experiment="e").destination.endswith("://host:5000/x e")


class _WandbRun:
    id = "w1"

    def __init__(self, given):
        self.given, self.calls, self.summary = given, [], {}
        self.config = python_types.SimpleNamespace(
            update=lambda *args, **given: self.calls.append(("config", *args, given))
        )

    def __getattr__(self, name):
        return lambda *args, **given: self.calls.append((name, *args, given))


@pytest.fixture
def wandb(monkeypatch):
    module = python_types.SimpleNamespace(
        init=lambda **given: _WandbRun(given), Settings=lambda **given: given
    )
    monkeypatch.setitem(sys.modules, "wandb", module)


@pytest.mark.parametrize(
    ("mode", "is_beside"), [("offline", True), ("online", True), ("online", False)]
)
@pytest.mark.parametrize("parameters", [PARAMETERS, {}])
def test_wandb_gets_a_step_of_our_own_and_processes_share_a_run(wandb, mode, is_beside, parameters):
    given = types.RunDescription(
        "a", "runs/a", parameters=parameters, run_id="w1", is_beside=is_beside
    )
    run = tracking.WandB(mode=mode, flush_secs=5).start(given)
    run.log(300, {"eval/auc": 0.5})
    run.end(types.FAILED)
    made = run._run
    settings = made.given["settings"]
    assert made.given["id"] == "w1" and made.given["resume"] == "allow"
    assert settings["init_timeout"] == settings["finish_timeout"] == 4
    is_shared = mode == "online" and is_beside
    assert settings["mode"] == ("shared" if is_shared else mode)
    assert settings.get("x_primary") == (bool(parameters) if is_shared else None)
    assert settings.get("x_update_finish_state", True) == (bool(parameters) or not is_shared)
    assert ("log", {"global_step": 300, "eval/auc": 0.5}, {}) in made.calls
    assert ("define_metric", "*", {"step_metric": "global_step"}) in made.calls
    assert made.summary == {"state": "failed"}
    assert made.calls[-1] == ("finish", {"exit_code": 1})
