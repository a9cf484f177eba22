r"""Trains several gin files in order, each in a separate folder under --model_dir.

Each --gin_file is a stage, and its folder has the name of the file. A stage gets the folder of an
earlier stage from a macro: a file that builds on joint.gin uses %joint_dir. To train a stage
without launch.stages, bind the macro of the earlier stage's folder in the file or in a flag, as in
joint_dir = "runs/joint". Finished stages are not trained again, and an interrupted stage continues.

    python -m launch.stages --gin_file gin_configs/experiments/mnist_lt/joint.gin \
        --gin_file gin_configs/experiments/mnist_lt/crt.gin --model_dir runs/mnist_lt
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launch import app
from mtl import checks, deferred
from mtl.configs import config, gin_files, trust
from mtl.deferred import tf
from mtl.files import storage

with deferred.imports():
    from mtl import experiment, types, verbs
    from mtl.checkpoints import run_directory
    from mtl.monitoring import summary

_log = logging.getLogger("mtl.stages")


# A stage is a complete run with a gin file and a folder, which other commands can evaluate, export
# or continue.
@dataclasses.dataclass(frozen=True)
class Stage:
    """A run in a sequence of runs that build on each other.

    Attributes:
      file: the gin file.
      params: bindings that override the bindings of the file.
      model_dir: the folder of the run.
      part: the place of this stage in the run of all stages, for trackers.
      trusted: the packages and settings that the files may use.
    """

    file: str
    params: tuple[str, ...]
    model_dir: str
    part: types.RunPart | None = None
    trusted: trust.Trusted = trust.EVERYTHING

    @property
    def name(self) -> str:
        """The name of the stage: the name of its gin file, without the ending."""
        return pathlib.Path(self.file).stem

    def load(self) -> experiment.Experiment:
        """Return the experiment.

        Raises:
          UserError: `model_dir` holds a run with other settings.
        """
        path = os.path.join(self.model_dir, "config.gin")
        saved_lines = _read_settings(path, self.trusted) if tf.io.gfile.exists(path) else None
        # Load this experiment last, because `config.save` writes the settings that were loaded
        # last.
        experiment = config.load([self.file], self.params, self.trusted, self.model_dir)
        if saved_lines is not None:
            differences = sorted(saved_lines ^ _loaded_lines())
            rule = f"hold the stage {self.name!r} with the same settings, or no run"
            value = "other settings: " + "; ".join(differences[:2])
            fix = "Choose another --model_dir."
            checks.require(not differences, "--model_dir", rule, value, fix)
        return experiment

    def train(self) -> tuple[dict[str, Any], int]:
        """Train the remaining steps, and return the metrics and the number of trained steps."""
        experiment = self.load()
        save = functools.partial(config.save, self.model_dir)
        return verbs.train(experiment, self.model_dir, save, self.part)


def _read_settings(file: str, trusted: trust.Trusted) -> set[str]:
    """Return the lines of a saved config.gin, in the notation of this version."""
    config.read(file)  # Fail if the file is damaged.
    config.load([file], (), trusted)
    return _loaded_lines()


def _loaded_lines() -> set[str]:
    """Return the lines of the settings that were loaded last."""
    return set(config.text().split("\n"))


def plan(
    files: Sequence[str],
    params: Sequence[str],
    root: str,
    trusted: trust.Trusted = trust.EVERYTHING,
) -> list[Stage]:
    """Return the stages, and check that the files of all stages can be loaded.

    Args:
      files: the gin files, in the order of the stages.
      params: bindings that override the bindings of each file.
      root: the folder that contains a folder for each stage.
      trusted: the packages and settings that the files may use.

    Raises:
      UserError: two files have the same name, or a file cannot be loaded.
    """
    names = [pathlib.Path(file).stem for file in files]
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    checks.require(not repeated, "--gin_file", "name each stage once", repeated)
    stages: list[Stage] = []
    for name in names:
        storage.require_plain("--model_dir", os.path.join(root, name))
    for file, name in zip(files, names, strict=True):
        earlier = {stage.name: stage.model_dir for stage in stages}
        bindings = (*places(file, earlier, trusted), *params)
        # Trackers show all stages as one run.
        part = types.RunPart(name, root, is_first=not stages)
        stages.append(Stage(file, bindings, os.path.join(root, name), part, trusted))
    # Load all stages now, so that a mistake in the last stage is reported before hours of training.
    for stage in stages:
        stage.load()
    return stages


def places(
    file: str, earlier: Mapping[str, str], trusted: trust.Trusted = trust.EVERYTHING
) -> list[str]:
    """Return bindings of macros to the folders of earlier stages.

    Args:
      file: the gin file of a stage.
      earlier: {name of an earlier stage: the folder of its run}.
      trusted: the packages and settings that the file may use.
    """
    names = {binding.name for binding in gin_files.read([file], [], trusted)}
    return [f"{name}_dir = {path!r}" for name, path in earlier.items() if f"{name}_dir" in names]


def run(stages: Sequence[Stage]) -> Iterator[tuple[Stage, dict[str, Any], int]]:
    """Train stages one after another.

    Args:
      stages: the stages in order; each stage may build on earlier stages.

    Yields:
      (stage, {metric: value}, number of trained steps) for each stage, once it is trained.
    """
    changed: list[str] = []
    for number, stage in enumerate(stages, 1):
        _log.info("Stage %d of %d, %s, in %s", number, len(stages), stage.name, stage.model_dir)
        is_new = run_directory.find_latest(stage.model_dir) is None
        sources = [n for n in changed if any(b.startswith(f"{n}_dir =") for b in stage.params)]
        metrics, steps = stage.train()
        if sources and not is_new:
            _log.warning(
                "Stage %s was built before %s changed: delete %s to build it again",
                *(stage.name, sources[0], stage.model_dir),
            )
        if steps or sources or is_new:
            changed.append(stage.name)
        yield stage, metrics, steps


def main() -> None:
    """Train the stages that the flags describe, and print a table for each."""
    files, root = app.GIN_FILE.value, app.MODEL_DIR.value
    checks.require(len(files) > 0, "--gin_file", "name a stage", files)
    checks.require(bool(root), "--model_dir", "name the folder of the stages", root)
    for stage, metrics, steps in run(plan(files, app.GIN_PARAM.value, root, app.trusted())):
        print(f"\n{stage.name}: trained {steps} steps. Held-out metrics:\n")
        print(summary.metrics_table(metrics))


if __name__ == "__main__":
    app.run(main)
