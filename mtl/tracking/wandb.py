"""Weights & Biases: a run of a project, sent at once or kept for later; needs the extra `wandb`.

from mtl import tracking
experiment.Experiment.trackers = [@tracking.WandB()]
tracking.WandB.project = "digits"
tracking.WandB.mode = "offline"           # `wandb sync` sends it later
"""

import dataclasses
import importlib
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from mtl import checks, types
from mtl.tracking import packages

_MODES = ("online", "offline")
_STEP = "global_step"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WandB(types.Tracker):
    """Reports to Weights & Biases. Every chart has the global step below it.

    Attributes:
      project: in which runs are listed.
      entity: the user or team that the project belongs to; the account's own by default.
      mode: "online", or "offline", which writes into the run's folder and sends nothing.
      run_name: of the run; by default that of its folder.
      tags: of the run.
      export_limit_mb: up to which size the best export is added as an artefact, in megabytes; 0
        adds none.
      flush_secs: how long the end of a run waits for what is not reported yet, in seconds.
    """

    project: str = "mtl"
    entity: str | None = None
    mode: str = "online"
    run_name: str | None = None
    tags: Sequence[str] = ()
    export_limit_mb: float = 0.0
    flush_secs: float = 10.0

    def __post_init__(self):
        checks.is_a("WandB.project", self.project, str, "be a name")
        checks.require(bool(self.project), "WandB.project", "be a name", self.project)
        for name in ("entity", "run_name"):
            if getattr(self, name) is not None:
                checks.is_a(f"WandB.{name}", getattr(self, name), str, "be a text or None")
        checks.one_of("WandB.mode", self.mode, _MODES)
        checks.texts("WandB.tags", self.tags, "be a list of texts")
        checks.at_least("WandB.export_limit_mb", self.export_limit_mb, 0)
        checks.positive("WandB.flush_secs", self.flush_secs)

    @property
    def destination(self) -> str:
        """The project, whose it is, and whether it is sent."""
        return f"{self.mode} {self.entity or ''}/{self.project}"

    def require(self) -> None:
        """Fail where wandb is not installed."""
        packages.require("WandB", "wandb")

    def start(self, run: types.RunDescription) -> "_Run":
        """Begin a run, or go on with the one of this id."""
        wandb = importlib.import_module("wandb")
        settings: dict[str, Any] = {
            "console": "off",
            "silent": True,
            # Python waits at its end for what wandb has begun.
            "init_timeout": 0.8 * self.flush_secs,
            "finish_timeout": 0.8 * self.flush_secs,
            "finish_timeout_raises": True,
        }
        if run.is_beside and self.mode == "online":
            # Two processes write to one run: neither may end it for the other.
            settings |= {"mode": "shared", "x_primary": bool(run.parameters)}
            settings |= {} if run.parameters else {"x_update_finish_state": False}
        made = wandb.init(
            project=self.project,
            entity=self.entity,
            id=run.run_id or uuid.uuid4().hex[:12],
            name=self.run_name or run.name,
            tags=list(self.tags) or None,
            dir=run.folder,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(**({"mode": self.mode} | settings)),
        )
        made.config.update(dict(run.parameters), allow_val_change=True)
        made.define_metric(_STEP)
        made.define_metric("*", step_metric=_STEP)
        return _Run(made)


class _Run(types.TrackedRun):
    """A run of Weights & Biases."""

    def __init__(self, run: Any):
        self._run = run

    @property
    def run_id(self) -> str:
        return self._run.id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # Not as W&B's own step, which never goes back: an evaluation may be of an earlier one.
        self._run.log({_STEP: step, **metrics})

    def add_file(self, path: str, folder: str) -> None:
        if not os.path.isdir(path):
            # The path below `base_path` is the file's name there, such as first/config.gin.
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
        # W&B tells the state of a run by this code: who adds to a failed one leaves it failed.
        state = state or self._run.summary.get("state")
        self._run.finish(exit_code=0 if state in (None, types.FINISHED) else 1)
