"""Distillation: learns from the predictions, or the representation, of a trained model.

model.MultiTaskModel.auxiliary_losses = [@auxiliary.Distillation()]
auxiliary.Distillation.teacher = "runs/large"            # a run, the folder of a SavedModel,
                                                         # or "runs/large/model.ckpt-300"
auxiliary.Distillation.temperature = 2.0

The teacher is an exported model, which runs in a separate session at each step. The teacher gets
the rows without the student's augmentations. With `MultiTaskModel.mixing`, the student takes a
further forward pass on unmixed rows, which is compared with the teacher.
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
    """The base class of losses that compare the model with a trained model.

    Attributes:
      teacher: the folder of a SavedModel; a folder of numbered versions, for the newest version; a
        run, for its best export or, if there is none, its latest export; or a checkpoint that
        `launch.export --checkpoint` has exported.
      signature: the name of a signature of the SavedModel that takes features as tensors, and
        returns `<task>/<prediction>`.
    """

    teacher: str
    signature: str = settings.RAW

    reads_features: ClassVar[bool] = True

    @property
    def files(self) -> dict[str, str]:
        """The files with the teacher's graph, and with the checksums of its weights."""
        folder = find_model(self.teacher, self._where("teacher"))
        index = os.path.join(folder, "variables", "variables.index")
        return {"teacher": os.path.join(folder, saved_model.FILE), "teacher_weights": index}

    def _open_teacher(self) -> Teacher:
        return Teacher(self._where("teacher"), self.teacher, self.signature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(_OfTeacher, base.OfHeads):
    """`T^2 D(q_T, p_T)`: the divergence of predictions p from the teacher's q at temperature T.

    G. Hinton, O. Vinyals, J. Dean, "Distilling the Knowledge in a Neural Network", 2015,
    arXiv:1503.02531. The predictions p_T of the model and q_T of the teacher come from logits that
    are divided by T. Heads that predict numbers have no temperature. The loss is a mean over all
    rows, labelled or not. The factor T^2 keeps the scale of gradients independent of the
    temperature T.

    Attributes:
      temperature: the temperature T, above 0; or {task: T}, with T = 1 for other tasks.
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
        """Check that the tasks exist, and that their heads can learn from predictions.

        Raises:
          UserError: a task is unknown, its head cannot learn from predictions, or `temperature`
            names a task that the loss does not compare.
        """
        super().check(heads)
        if isinstance(self.temperature, Mapping):
            for task in self.temperature:
                checks.one_of(self._where("temperature"), task, self._choose(heads))

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the divergence of the student from the teacher for each row, [B]."""
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
            # The temperature scales gradients by 1 / T^2 (Hinton et al., section 2).
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
            # A head that predicts numbers has no temperature.
            return 1.0
        if isinstance(self.temperature, Mapping):
            return self.temperature.get(head.name, 1.0)
        return self.temperature

    def _check_classes(self, teacher: Teacher, task: str, head: types.Head) -> None:
        """Check that the teacher's metadata list the same classes as the student's head."""
        teacher_classes = teacher.described.get("tasks", {}).get(task, {}).get("classes")
        classes = list(types.read_member(head, types.ClassHead, "class_names"))
        rule = f"have the classes of task {task!r}, {classes[:10]}"
        fits = teacher_classes in (None, classes)
        checks.require(fits, self._where("teacher"), rule, teacher_classes)


@checks.dataclass
class FeatureDistillation(_OfTeacher):
    """`|W h + b - t|^2 / D`: compares a tower h with a tensor t [B, D] of the teacher.

    A. Romero et al., "FitNets: Hints for Thin Deep Nets", 2014, arXiv:1412.6550, with a linear map
    W, b, which is trained with the network. The paper first trains on this loss alone; here, the
    network is trained on the sum of this loss and the other losses.

    Attributes:
      tensor: the name of an op in the teacher's graph, with the output t [B, D].
      task: the task whose tower h is compared; by default the first task.
    """

    name: str = "feature_distillation"
    tensor: str
    task: Annotated[str, checks.Is(str, "name a task")] | None = None

    def check(self, heads: Mapping[str, types.Head]) -> None:
        """Check that the task exists.

        Raises:
          UserError: the task is unknown, or has no tower.
        """
        if self.task is not None:
            checks.one_of(self._where("task"), self.task, base.list_towers(heads))

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the mean squared difference of the representations of each row, [B]."""
        teacher = self._open_teacher()
        target = teacher.compute(self._where("tensor"), activations.features, self.tensor)
        tower = activations.towers[self.task or next(iter(activations.towers))]
        mapped = layers.dense(tower, target.shape[1], "map")
        return tf.reduce_mean(tf.math.squared_difference(mapped, tf.stop_gradient(target)), 1)


class Teacher:
    """A SavedModel that predicts the rows of a training step.

    Args:
      where: the name of the setting, for error messages.
      folder: the folder of a SavedModel, or of a run; see `find_model`.
      signature: the name of a signature that takes features as tensors, [B, ...] each.

    Attributes:
      described: the metadata of the exported model.
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
        """Predict rows by the SavedModel.

        Args:
          features: {field: [B, ...]}, with at least the fields that the SavedModel's signature
            reads.
          tasks: tasks that the signature predicts.

        Returns:
          {task: {prediction: float32 [B, ...]}}; predictions that are ids or texts are left out.

        Raises:
          UserError: a task or an input is missing, or an input has the wrong type.
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
        """Compute the output [B, D] of an op in the teacher's graph.

        Args:
          where: the name of the setting, for error messages.
          features: {field: [B, ...]}, with at least the fields that the SavedModel's signature
            reads.
          name: the name of an op whose first output is float32 [B, D], with a static D.

        Raises:
          UserError: the teacher's graph has no op with the name `name` and an output float32 [B,
            D].
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

        # The teacher has a separate graph and session, so this graph does not get its variables.
        outputs = tf.numpy_function(call, list(inputs.values()), [tf.float32] * len(tensors))
        for value, shape in zip(outputs, shapes, strict=True):
            # The outputs of `numpy_function` have no static shapes. The number of rows comes from
            # the student's batch.
            if shape.rank is not None:
                value.set_shape([rows, *shape[1:]])
        return list(outputs)

    def _choose_inputs(self, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Choose the features that the signature reads, {input: [B, ...]}."""
        offered: dict[str, tf.Tensor] = {}
        for name, values in features.items():
            if isinstance(values, tf.RaggedTensor):
                # For a ragged feature, an export takes a padded tensor and the lengths of its rows.
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
    """Find the SavedModel of a folder, a run or a checkpoint.

    A folder of versions stands for its newest version. A run stands for its best export or, if
    there is none, its latest export. A checkpoint stands for the newest export of the checkpoint's
    step.

    Args:
      folder: the path of a SavedModel, of a folder of numbered SavedModels, of a run, or of a
        checkpoint.
      where: the name of the setting, for error messages.

    Returns:
      The folder of a SavedModel; `folder` itself if it has no versions or exports.

    Raises:
      UserError: the checkpoint has no export that is newer than the checkpoint itself.
    """
    if tf.io.gfile.exists(f"{folder}.index"):
        return _find_export(folder, where)
    exports = [os.path.join(folder, "export", name) for name in ("best", "latest")]
    for place in (folder, *exports):
        if numbers := versions.list_versions(place):
            return os.path.join(place, str(numbers[-1]))
    return folder


def _find_export(checkpoint: str, where: str) -> str:
    """Find the newest export of a checkpoint, such as `runs/a/model.ckpt-300`."""
    run, step = os.path.dirname(checkpoint), run_directory.step_in_name(checkpoint)
    indexes = [f"{checkpoint}.index"]
    # The best checkpoint is in <run>/best, but the folder of a run may also be called "best".
    if os.path.basename(run) == "best" and not tf.io.gfile.isdir(os.path.join(run, "export")):
        run = os.path.dirname(run)
        # In object storage, the best checkpoint is a copy that may be newer than the export. So the
        # earlier of the times of the copy and of the original checkpoint counts.
        indexes.append(os.path.join(run, os.path.basename(indexes[0])))
    times = [tf.io.gfile.stat(path).mtime_nsec for path in indexes if tf.io.gfile.exists(path)]
    written = min(times) // 10**9
    # The number of a version is the time of the export. An export that is older than the checkpoint
    # may come from an earlier training in the same folder.
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
    """Load the model in a folder, once for each graph that is being built."""
    models = _MODELS.setdefault(graphs.outermost_graph(), {})
    if directory not in models:
        models[directory] = loaded.open_export(directory)
    return models[directory]


_MODELS: weakref.WeakKeyDictionary[tf.Graph, dict[str, loaded.Loaded]] = weakref.WeakKeyDictionary()
"""{graph: {folder: model}}; a model is open as long as the graph that calls it exists."""
