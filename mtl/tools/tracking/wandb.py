"""Reports to Weights & Biases, online or offline; needs the extra `wandb`.

from mtl.tools import tracking
experiment.Experiment.trackers = [@tracking.WandB()]
tracking.WandB.project = "digits"
tracking.WandB.mode = "offline"           # `wandb sync` sends it later
"""

import importlib
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from mtl import checks, types
from mtl.tools.tracking import packages

_MODES = ("online", "offline")
_STEP = "global_step"


@checks.dataclass
class WandB(types.Tracker):
    """Reports to Weights & Biases. The horizontal axis of all charts is the global step.

    Attributes:
      project: the project that lists the run.
      entity: the user or team of the project; by default the user.
      mode: "online", or "offline", which only writes to the run's folder.
      run_name: the name of the run; by default the name of its folder.
      tags: tags of the run.
      export_limit_mb: the size in megabytes up to which the best export is added as an artefact; 0
        never adds it.
      flush_secs: how long the end of a run waits for unfinished reports, in seconds.
    """

    project: Annotated[str, checks.Filled("be a name")] = "mtl"
    entity: str | None = None
    mode: Annotated[str, checks.OneOf(_MODES)] = "online"
    run_name: str | None = None
    tags: Sequence[str] = ()
    export_limit_mb: checks.NotNegative = 0.0
    flush_secs: checks.Positive = 10.0

    @property
    def destination(self) -> str:
        """The mode, the entity and the project."""
        return f"{self.mode} {self.entity or ''}/{self.project}"

    def require(self) -> None:
        """Fail if wandb is not installed."""
        packages.require("WandB", "wandb")

    def start(self, run: types.RunDescription) -> "_Run":
        """Begin a run, or continue the run with the id `run.run_id`."""
        wandb = importlib.import_module("wandb")
        settings: dict[str, Any] = {
            "console": "off",
            "silent": True,
            # At its end, Python waits for threads that wandb has started.
            "init_timeout": 0.8 * self.flush_secs,
            "finish_timeout": 0.8 * self.flush_secs,
            "finish_timeout_raises": True,
        }
        if run.is_beside and self.mode == "online":
            # Two processes write to the same run, and must not end it for each other.
            settings |= {"mode": "shared", "x_primary": bool(run.parameters)}
            settings |= {} if run.parameters else {"x_update_finish_state": False}
        created = wandb.init(
            project=self.project,
            entity=self.entity,
            id=run.run_id or uuid.uuid4().hex[:12],
            name=self.run_name or run.name,
            tags=list(self.tags) or None,
            dir=run.folder,
            resume="allow",
            # `create_new` leaves other runs of this process open.
            reinit="create_new",
            settings=wandb.Settings(**({"mode": self.mode} | settings)),
        )
        created.config.update(dict(run.parameters), allow_val_change=True)
        created.define_metric(_STEP)
        # The axis of all charts is the global step, in place of W&B's count of calls.
        created.define_metric("*", step_metric=_STEP)
        return _Run(created)


class _Run(types.TrackedRun):
    """A run of Weights & Biases."""

    def __init__(self, run: Any):
        self._run = run

    @property
    def run_id(self) -> str:
        return self._run.id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # W&B's own step never goes back, but an evaluation may belong to an earlier step.
        self._run.log({_STEP: step, **metrics})

    def add_file(self, path: str, folder: str) -> None:
        if not os.path.isdir(path):
            # W&B names the file by its path below `base_path`, such as first/config.gin.
            name = os.path.join(folder, os.path.basename(path))
            is_below = path.endswith(f"/{name}")
            base = path.removesuffix(f"/{name}") if is_below else os.path.dirname(path)
            self._run.save(path, base_path=base or ".", policy="now")
            return
        wandb = importlib.import_module("wandb")
        artifact = wandb.Artifact(f"{self._run.id}-{folder.replace('/', '-')}", type="model")
        artifact.add_dir(path)
        self._run.log_artifact(artifact)

    def end(self, state: str | None) -> None:
        if state is not None:
            self._run.summary["state"] = state
        # The exit code sets the state in W&B, and a later process must not change a failed state.
        state = state or self._run.summary.get("state")
        self._run.finish(exit_code=0 if state in (None, types.FINISHED) else 1)
