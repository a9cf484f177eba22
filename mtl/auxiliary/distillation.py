"""Learning from the predictions, or the representation, of a trained model.

model.MultiTaskModel.auxiliary_losses = [@auxiliary.Distillation()]
auxiliary.Distillation.teacher = "runs/large"            # a run, or the folder of a SavedModel,
                                                         # or "runs/large/model.ckpt-300"
auxiliary.Distillation.temperature = 2.0

The teacher is the exported model that a server would serve; it runs in a separate session beside
each step. The teacher sees the rows without the student's augmentations. With
`MultiTaskModel.mixing` the student runs once more on unmixed rows, and learns from the teacher
there.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, cast

import numpy as np

from mtl import checks, layers, types
from mtl.auxiliary import base
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.serving import inputs as inputs_lib
from mtl.serving import loaded, metadata, settings, versions
from mtl.tf_internals import graphs, saved_model


@checks.dataclass
class _OfTeacher(base.Base):
    """A loss that compares with the outputs of a trained model.

    Attributes:
      teacher: the folder of a SavedModel; a folder of numbered versions, of which the newest is
        used; a run, of which the best export is used, or else the latest; or a checkpoint of a run,
        which `launch.export --checkpoint` has exported.
      signature: the signature of the SavedModel; it takes features as tensors and returns
        `<task>/<prediction>`.
    """

    teacher: str
    signature: str = settings.RAW

    reads_features: ClassVar[bool] = True

    @property
    def files(self) -> dict[str, str]:
        """The file of the teacher's graph."""
        return {
            "teacher": os.path.join(
                find_model(self.teacher, self._where("teacher")), saved_model.FILE
            )
        }

    def _open_teacher(self) -> Teacher:
        return Teacher(self._where("teacher"), self.teacher, self.signature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(_OfTeacher, base.OfHeads):
    """`T^2 D(q_T, p_T)`, from the teacher's predictions q to the student's p at a temperature T.

    G. Hinton, O. Vinyals, J. Dean, "Distilling the Knowledge in a Neural Network", 2015,
    arXiv:1503.02531. Logits divided by T give `p_T`; heads that predict numbers have no
    temperature. The loss is a mean over all rows, with labels or without. The factor T^2 keeps
    gradients as large as at T = 1.

    Attributes:
      temperature: T, above 0; or {task: T}, with 1 for other tasks.
    """

    name: str = "distillation"
    temperature: float | Mapping[str, float] = 2.0

    kind: ClassVar[type] = types.TeachableHead
    rule: ClassVar[str] = "name tasks whose heads can learn from predictions"

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.temperature, Mapping):
            checks.mapping(self._where("temperature"), self.temperature, "map tasks to numbers")
            for task, value in self.temperature.items():
                checks.positive(self._where(f"temperature[{task!r}]"), value)
        else:
            checks.positive(self._where("temperature"), self.temperature)

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Fail unless the tasks exist, and their heads can learn from predictions."""
        super().check(heads)
        if isinstance(self.temperature, Mapping):
            for task in self.temperature:
                checks.one_of(self._where("temperature"), task, self._choose(heads))

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return how far the student is from the teacher, [B]."""
        heads = cast(Mapping[str, types.TeachableHead], activations.heads)
        tasks = self._choose(activations.heads)
        teacher = self._open_teacher()
        for task in tasks:
            self._check_classes(teacher, task, activations.heads[task])
        predictions = teacher.predict(activations.features, tasks)
        losses = []
        for task in tasks:
            target = self._recover_logits(heads[task], task, predictions[task])
            logits = activations.logits[task]
            where, rule = self._where("teacher"), f"predict {logits.shape[1:]} for {task!r}"
            checks.require(target.shape[1:] == logits.shape[1:], where, rule, target.shape[1:])
            # Gradients of softened probabilities shrink by 1 / T^2 (Hinton et al., section 2).
            heat = self._find_temperature(activations.heads[task])
            target = tf.stop_gradient(target)
            losses.append(heat**2 * heads[task].divergence(target / heat, logits / heat))
        return tf.add_n(losses)

    def _recover_logits(
        self, head: types.TeachableHead, task: str, predictions: types.Tensors
    ) -> tf.Tensor:
        try:
            return head.recover_logits(predictions)
        except KeyError as missing:
            rule = f"predict {missing} for {task!r}, from which {type(head).__name__} learns"
            checks.fail(self._where("teacher"), rule, sorted(predictions))

    def _find_temperature(self, head: types.Head) -> float:
        if not types.read_member(head, types.ClassHead, "class_names"):
            # A head that predicts numbers has no logits to soften.
            return 1.0
        if isinstance(self.temperature, Mapping):
            return self.temperature.get(head.name, 1.0)
        return self.temperature

    def _check_classes(self, teacher: Teacher, task: str, head: types.Head) -> None:
        """Fail if the teacher's metadata name other classes than the student has."""
        teacher_classes = teacher.described.get("tasks", {}).get(task, {}).get("classes")
        classes = list(types.read_member(head, types.ClassHead, "class_names"))
        rule = f"have the classes of task {task!r}, {classes[:10]}"
        fits = teacher_classes in (None, classes)
        checks.require(fits, self._where("teacher"), rule, teacher_classes)


@checks.dataclass
class FeatureDistillation(_OfTeacher):
    """`|W h + b - t|^2 / D`, with t a tensor of the teacher, h a tower, and W, b of this loss.

    A. Romero et al., "FitNets: Hints for Thin Deep Nets", 2014, arXiv:1412.6550, with a linear
    map. It trains together with the other losses; the paper trains on hints first.

    Attributes:
      tensor: the name of an op of the teacher's graph with the output [B, D].
      task: the task whose tower is h; the first task by default.
    """

    name: str = "feature_distillation"
    tensor: str
    task: Annotated[str, checks.Is(str, "name a task")] | None = None

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Fail unless the task exists."""
        if self.task is not None:
            checks.one_of(self._where("task"), self.task, base.list_towers(heads))

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return the squared distance of the representations, [B]."""
        teacher = self._open_teacher()
        target = teacher.compute(self._where("tensor"), activations.features, self.tensor)
        tower = activations.towers[self.task or next(iter(activations.towers))]
        mapped = layers.dense(tower, target.shape[1], "map")
        return tf.reduce_mean(tf.math.squared_difference(mapped, tf.stop_gradient(target)), 1)


class Teacher:
    """A SavedModel that predicts the rows of a step.

    Args:
      where: the name of the setting, for errors.
      folder: the folder of a SavedModel, or of a run; see `find_model`.
      signature: the name of a signature that takes features as tensors.

    Attributes:
      described: the metadata of the export.
    """

    def __init__(self, where: str, folder: str, signature: str):
        directory = find_model(folder, where)
        rule = "name a SavedModel, a folder of numbered SavedModels, or a run folder"
        is_there = tf.io.gfile.exists(os.path.join(directory, saved_model.FILE))
        checks.require(is_there, where, rule, folder, "launch.export writes a SavedModel.")
        metadata.require_intact(directory)
        self.described = metadata.read_metadata(directory)
        self._where = where
        self._model = _load_export(directory)
        signatures = self._model.signatures
        checks.one_of(f"{where}: its signature", signature, sorted(signatures))
        self._signature = signatures[signature]

    def predict(
        self, features: types.Tensors, tasks: Sequence[str]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """Predict {field: [B, ...]} -> {task: {prediction: [B, ...] float32}}.

        Args:
          features: {field: [B, ...]}, with all inputs of the signature.
          tasks: the tasks, which the signature must predict.

        Returns:
          The predictions that are floats; ids and texts are left out.

        Raises:
          UserError: a task or an input is missing, or an input has another type.
        """
        names = [
            name
            for name, info in self._signature.outputs.items()
            if name.partition("/")[0] in tasks and tf.as_dtype(info.dtype).is_floating
        ]
        predictions: dict[str, dict[str, tf.Tensor]] = {task: {} for task in tasks}
        teacher_tasks = sorted({name.partition("/")[0] for name in self._signature.outputs})
        for task in tasks:
            checks.one_of(f"{self._where}: a task of its outputs", task, teacher_tasks)
        tensors = [self._signature.outputs[name].name for name in names]
        for name, value in zip(names, self._call(features, tensors), strict=True):
            task, _, prediction = name.partition("/")
            predictions[task][prediction] = value
        return predictions

    def compute(self, where: str, features: types.Tensors, name: str) -> tf.Tensor:
        """Compute an op of the teacher's graph, {field: [B, ...]} -> [B, D].

        Args:
          where: the name of the setting, for errors.
          features: {field: [B, ...]}, with all inputs of the signature.
          name: the name of an op whose first output is float32 [B, D], with D known.

        Raises:
          UserError: the graph has no op of this name.
        """
        shapes = {
            op.name: op.outputs[0].shape
            for op in self._model.session.graph.get_operations()
            if op.outputs and op.outputs[0].dtype == tf.float32
        }
        fits = [
            op_name
            for op_name, shape in shapes.items()
            if shape.rank == 2 and shape[1] is not None and shape[0] is None
        ]
        rule = "name an op of the teacher's graph that gives float32 [B, D]"
        checks.require(name in fits, where, rule, name, checks.nearest(name, fits))
        return self._call(features, [f"{name}:0"])[0]

    def _call(self, features: types.Tensors, tensors: Sequence[str]) -> list[tf.Tensor]:
        inputs = self._choose_inputs(features)
        graph = self._model.session.graph
        shapes = [graph.get_tensor_by_name(name).shape for name in tensors]
        feed = [self._signature.inputs[name].name for name in inputs]
        run = self._model.session.make_callable(list(tensors), feed)
        rows = next(iter(features.values())).shape[0]

        def call(*values: np.ndarray) -> list[np.ndarray]:
            return [np.asarray(output, np.float32) for output in run(*values)]

        # The teacher has its own graph and session, so its variables never enter this graph.
        outputs = tf.numpy_function(call, list(inputs.values()), [tf.float32] * len(tensors))
        for value, shape in zip(outputs, shapes, strict=True):
            # `numpy_function` forgets shapes; the number of rows comes from the student's batch.
            if shape.rank is not None:
                value.set_shape([rows, *shape[1:]])
        return list(outputs)

    def _choose_inputs(self, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Return the features that the signature reads, {input: [B, ...]}."""
        offered: dict[str, tf.Tensor] = {}
        for name, values in features.items():
            if isinstance(values, tf.RaggedTensor):
                # An export takes a ragged feature as a padded tensor and its lengths.
                offered[name] = values.to_tensor()
                offered[inputs_lib.length_name(name)] = values.row_lengths()
            else:
                offered[name] = values
        inputs = {}
        for name, info in self._signature.inputs.items():
            checks.one_of(f"{self._where}: a feature of its inputs", name, offered)
            dtype = tf.as_dtype(info.dtype)
            rule = f"read {name!r} as {offered[name].dtype.name}, as in the data"
            checks.require(dtype == offered[name].dtype, self._where, rule, dtype.name)
            inputs[name] = offered[name]
        return inputs


def find_model(folder: str, where: str = "teacher") -> str:
    """Return the folder itself, its newest version, or the best or latest export of a run.

    For a checkpoint, return the newest export of its step in the run.

    Args:
      folder: a SavedModel, a folder of numbered SavedModels, a run, or a checkpoint.
      where: the name of the setting, for errors.

    Returns:
      The folder of a SavedModel; `folder` itself if it holds no version.

    Raises:
      UserError: a checkpoint has no export that is newer than itself.
    """
    if tf.io.gfile.exists(f"{folder}.index"):
        return _find_export(folder, where)
    exports = [os.path.join(folder, "export", name) for name in ("best", "latest")]
    for place in (folder, *exports):
        if numbers := versions.list_versions(place):
            return os.path.join(place, str(numbers[-1]))
    return folder


def _find_export(checkpoint: str, where: str) -> str:
    """Return the newest export of a checkpoint, a path such as `runs/a/model.ckpt-300`."""
    run, step = os.path.dirname(checkpoint), run_directory.step_in_name(checkpoint)
    # The best checkpoint lies in <run>/best, but a run may also have this name.
    if os.path.basename(run) == "best" and not tf.io.gfile.isdir(os.path.join(run, "export")):
        run = os.path.dirname(run)
    written = tf.io.gfile.stat(f"{checkpoint}.index").mtime_nsec // 10**9
    # The number of a version is its time. Exports before the checkpoint may come from another
    # training here.
    later = {
        version: os.path.join(run, "export", name, str(version))
        for name in ("latest", "best", "manual")
        for version in versions.list_versions(os.path.join(run, "export", name))
        if version >= written
    }
    exports = [
        directory
        for _, directory in sorted(later.items())
        if metadata.read_metadata(directory).get("step") == step
    ]
    fix = f"Run launch.export --model_dir {run or '.'} --checkpoint {checkpoint} first."
    checks.require(bool(exports), where, "be a checkpoint that was exported", checkpoint, fix)
    return exports[-1]


def _load_export(directory: str) -> loaded.Loaded:
    """Return the model in a folder, loaded once for each graph that is being built."""
    models = _MODELS.setdefault(graphs.outermost_graph(), {})
    if directory not in models:
        models[directory] = loaded.open_export(directory)
    return models[directory]


_MODELS: weakref.WeakKeyDictionary[tf.Graph, dict[str, loaded.Loaded]] = weakref.WeakKeyDictionary()
"""{graph: {folder: model}}; models stay open as long as the graph that calls them."""
