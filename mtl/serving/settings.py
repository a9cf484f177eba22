"""Defines the settings of exports.

serving.Serving.model_name = "income"
serving.Serving.outputs = ["income/probability"]         # the signature `lean`
serving.Serving.passthrough = ["row_id"]                 # returned with the predictions
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from mtl import checks, types
from mtl.variables import patterns

RESERVED = DEFAULT, LEAN, RAW = "serving_default", "lean", "raw"


class Rewriting(Protocol):
    """The protocol of parts that rewrite a SavedModel for speed and size, such as `Optimized`."""

    @property
    def allowed(self) -> float:
        """The largest allowed difference of an output from the prediction of the Estimator."""

    @property
    def keeps_graph(self) -> bool:
        """True if the rewriting leaves the graph unchanged."""
        return False

    def __call__(self, directory: str) -> None:
        """Rewrite the SavedModel in a directory, to make it smaller or faster."""


@checks.dataclass
class Serving:
    """Sets the content and the checks of every export, also of exports during a training.

    Attributes:
      model_name: the name of the model for clients, in warm-up requests and files for deployment.
      signatures: patterns (see `mtl.variables.patterns`) of the signatures to write; all by
        default. `mtl.serving.signatures` lists the names of all signatures. "serving_default" is
        always written. If no pattern matches "serving_default", this signature has the outputs of
        "lean", if "lean" exists.
      outputs: the outputs "<task>/<name>" of the signature "lean"; () writes no signature "lean".
      passthrough: features, such as an id, that signatures return unchanged with the predictions.
      units: {task: unit}, such as "EUR", of the predictions of a task, for the metadata.
      keep: how many of the newest versions to keep in a folder, besides the version with the label
        stable in models.config.
      check_rows: the number of rows of the evaluation split that check an export. An export is
        published only if it predicts the same as the Estimator. 0 skips the check.
      optimized: rewrites exports for speed and size, see `Optimized`. With `optimized = None`,
        exports are not rewritten, but units that add nothing are removed after pruning; `AsTrained`
        keeps all units.
      warm_up_rows: the number of rows in a large warm-up request; a small request has one row.
      portable: True adds two SavedModels for other runtimes to each export, in the folder
        `portable`. One SavedModel takes raw features as plain tensors; the other takes ids of the
        features' values, which an encoder without TensorFlow computes. See
        `mtl.tools.runtimes.portable`.
    """

    model_name: checks.Name = "mtl"
    signatures: Annotated[Sequence[str], patterns.check_patterns] = ("",)
    outputs: checks.Names = ()
    passthrough: checks.Names = ()
    units: Annotated[Mapping[str, str], checks.Map("map tasks to units")] = dataclasses.field(
        default_factory=dict
    )
    keep: checks.Count = 3
    check_rows: checks.Natural = 256
    warm_up_rows: checks.Count = 32
    optimized: Annotated[Rewriting, checks.Part("serving.Optimized", 1, ["allowed"])] | None = None
    portable: bool = False

    @property
    def keeps_graph(self) -> bool:
        """True if exports have the graph of the model without changes."""
        rewriting = self.optimized
        return rewriting is None or types.read_member(rewriting, Rewriting, "keeps_graph")

    def check_experiment(self, experiment: Any) -> None:
        """Fail unless the settings fit the data and the tasks.

        Args:
          experiment: the `experiment.Experiment` of the run.

        Raises:
          UserError: a setting names an unknown task or feature, a feature in `passthrough` is a
            list, or a task has the name of a signature.
        """
        spec, tasks = experiment.data.spec, experiment.model.tasks
        for task in self.units:
            checks.one_of("Serving.units", task, tasks)
        for output in self.outputs:
            checks.one_of("Serving.outputs: the task", str(output).partition("/")[0], tasks)
        for name in self.passthrough:
            checks.one_of("Serving.passthrough", name, spec.features)
            rule = "name features of fixed length"
            checks.require(not spec.fields[name].is_ragged, "Serving.passthrough", rule, name)
        # The name of a task is also the name of a signature.
        for reserved in RESERVED:
            rule = f"not be called {reserved!r}, because a signature has this name"
            checks.require(reserved not in tasks, "MultiTaskModel.heads", rule, list(tasks))

    def chooses(self, signature: str) -> bool:
        """Return True if a pattern in `signatures` matches a signature.

        Args:
          signature: the final name, such as "raw/lean".
        """
        return any(patterns.matches(pattern, signature) for pattern in self.signatures)
