"""Reports runs to Weights & Biases, online or offline.

The tracker needs the extra `wandb` of this package.

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
    """Reports runs to Weights & Biases. The horizontal axis of all charts is the global step.

    Attributes:
      project: the name of the project that lists the run.
      entity: the user or team that owns the project; by default the user who is logged in.
      mode: "online", or "offline" to write only to the folder of the run.
      run_name: the name of the run; by default the name of its folder.
      tags: the tags of the run.
      export_limit_mb: the largest size in megabytes of an export that is added as an artefact; 0
        for no export.
      flush_secs: how many seconds the end of a run waits for unfinished reports.
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
        """Fail if wandb is not installed.

        Raises:
          UserError: wandb is not installed.
        """
        packages.require("WandB", "wandb")

    def start(self, run: types.RunDescription) -> "_Run":
        """Begin a run in Weights & Biases, or continue the run with the id `run.run_id`."""
        wandb = importlib.import_module("wandb")
        settings: dict[str, Any] = {
            "console": "off",
            "silent": True,
            # Limit the waiting, because Python waits at its end for threads that wandb has started.
            "init_timeout": 0.8 * self.flush_secs,
            "finish_timeout": 0.8 * self.flush_secs,
            "finish_timeout_raises": True,
        }
        if run.is_beside and self.mode == "online":
            # The chief and the evaluator write to the same run; an evaluator must not end the run.
            settings |= {"mode": "shared", "x_primary": bool(run.parameters)}
            settings |= {} if run.parameters else {"x_update_finish_state": False}
        wandb_run = wandb.init(
            project=self.project,
            entity=self.entity,
            id=run.run_id or uuid.uuid4().hex[:12],
            name=self.run_name or run.name,
            tags=list(self.tags) or None,
            dir=run.folder,
            resume="allow",
            # With `create_new`, other runs of this process stay open.
            reinit="create_new",
            settings=wandb.Settings(**({"mode": self.mode} | settings)),
        )
        wandb_run.config.update(dict(run.parameters), allow_val_change=True)
        wandb_run.define_metric(_STEP)
        # By default, the horizontal axis would be W&B's count of calls.
        wandb_run.define_metric("*", step_metric=_STEP)
        return _Run(wandb_run)


class _Run(types.TrackedRun):
    """A run in Weights & Biases."""

    def __init__(self, run: Any):
        self._run = run

    @property
    def run_id(self) -> str:
        return self._run.id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # Log the step as a metric: W&B's argument `step` must increase, but an evaluation may
        # belong to an earlier step.
        self._run.log({_STEP: step, **metrics})

    def add_file(self, path: str, folder: str) -> None:
        if not os.path.isdir(path):
            # In W&B, the name of a file is its path below `base_path`, such as first/config.gin.
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
        # The exit code sets the state in W&B. A later process must not turn "failed" into
        # "finished".
        state = state or self._run.summary.get("state")
        self._run.finish(exit_code=0 if state in (None, types.FINISHED) else 1)
