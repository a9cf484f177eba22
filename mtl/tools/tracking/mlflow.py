"""Reports runs to MLflow: to a tracking server, a database or a folder.

The tracker needs the extra `mlflow` of this package.

from mtl.tools import tracking
experiment.Experiment.trackers = [@tracking.MLflow()]
tracking.MLflow.tracking_uri = "sqlite:///mlflow.db"     # by default MLflow's own
tracking.MLflow.experiment = "digits"
"""

import dataclasses
import importlib
import os
import re
import time
from collections.abc import Mapping
from typing import Annotated, Any

from mtl import checks, types
from mtl.tools.tracking import packages

_STATES = {types.FINISHED: "FINISHED", types.FAILED: "FAILED", types.KILLED: "KILLED"}
# The largest number of parameters or metrics in a request; MLflow refuses more parameters.
_AT_ONCE = 100
# The user and password in an address, up to the "@".
_LOGIN = re.compile(r"//[^/\s]*@")
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]", re.ASCII)


@checks.dataclass
class MLflow(types.Tracker):
    """Reports runs to MLflow.

    Attributes:
      tracking_uri: the address of a server, "sqlite:///FILE" or a folder. The default is the
        environment variable MLFLOW_TRACKING_URI or, without the variable, MLflow's default. The
        address must not contain a password; set passwords in MLflow's environment variables.
      experiment: the name of the MLflow experiment that lists the run. A missing experiment is
        created.
      run_name: the name of the run; by default the name of its folder.
      tags: {name: text} for the tags of the run.
      export_limit_mb: the largest size in megabytes of an export that is added to the run; 0 for no
        export.
      flush_secs: how many seconds the end of a run waits for unfinished reports.
    """

    tracking_uri: str | None = None
    experiment: Annotated[str, checks.Filled("be a name")] = "mtl"
    run_name: str | None = None
    tags: Annotated[Mapping[str, str], checks.Map("be {name: text}")] = dataclasses.field(
        default_factory=dict
    )
    export_limit_mb: checks.NotNegative = 0.0
    flush_secs: checks.Positive = 10.0

    def __post_init__(self):
        checks.no_password("MLflow.tracking_uri", self.tracking_uri or "")

    @property
    def destination(self) -> str:
        """The address of the server, without its password, and the experiment."""
        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        return checks.mask(f"{_LOGIN.sub('//', uri)} {self.experiment}".strip())

    def require(self) -> None:
        """Fail if MLflow is not installed.

        Raises:
          UserError: MLflow is not installed.
        """
        packages.require("MLflow", "mlflow")

    def start(self, run: types.RunDescription) -> "_Run":
        """Begin a run in MLflow, or continue the run with the id `run.run_id`."""
        # Import MLflow here, in the thread of the tracker, because the import takes seconds.
        mlflow = importlib.import_module("mlflow")
        client = mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        run_id = run.run_id or self._create_run(client, run)
        tracked_run = _Run(client, run_id)
        # Processes that only add metrics to a run have no parameters.
        if run.parameters:
            client.update_run(run_id, status="RUNNING")
            tracked_run.set_parameters(run.parameters)
        return tracked_run

    def _create_run(self, client: Any, run: types.RunDescription) -> str:
        existing_items = client.get_experiment_by_name(self.experiment)
        experiment = (
            existing_items.experiment_id
            if existing_items
            else client.create_experiment(self.experiment)
        )
        tags = {"mtl.model_dir": run.folder, **self.tags}
        mlflow_run = client.create_run(experiment, run_name=self.run_name or run.name, tags=tags)
        return mlflow_run.info.run_id


class _Run(types.TrackedRun):
    """A run in MLflow."""

    def __init__(self, client: Any, run_id: str):
        self._client, self._id = client, run_id

    @property
    def run_id(self) -> str:
        return self._id

    def set_parameters(self, parameters: Mapping[str, str]) -> None:
        """Set new parameters; store changes as tags, because MLflow cannot change a parameter."""
        existing_items = self._client.get_run(self._id).data.params
        parameters = {_spell(name): value for name, value in parameters.items()}
        for name, value in parameters.items():
            # MLflow refuses a request with a changed parameter.
            if existing_items.get(name, value) != value:
                self._client.set_tag(self._id, f"changed/{name}", value)
        entities = importlib.import_module("mlflow.entities")
        new = [
            entities.Param(n, value) for n, value in parameters.items() if n not in existing_items
        ]
        for first in range(0, len(new), _AT_ONCE):
            self._client.log_batch(self._id, params=new[first : first + _AT_ONCE])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # MLflow measures time in milliseconds.
        metric, now = importlib.import_module("mlflow.entities").Metric, int(time.time() * 1000)
        points = [metric(_spell(name), value, now, step) for name, value in metrics.items()]
        for first in range(0, len(points), _AT_ONCE):
            self._client.log_batch(self._id, metrics=points[first : first + _AT_ONCE])

    def add_file(self, path: str, folder: str) -> None:
        if os.path.isdir(path):
            self._client.log_artifacts(self._id, path, folder or None)
        else:
            self._client.log_artifact(self._id, path, folder or None)

    def end(self, state: str | None) -> None:
        if state is not None:
            self._client.set_terminated(self._id, _STATES[state])


def _spell(name: str) -> str:
    """Return a name in which codes replace the characters that MLflow refuses."""
    return _NOT_IN_NAMES.sub(lambda match: f"_x{ord(match.group()):x}", name)
