"""Computes all explanations of a checkpoint once; `describe` and `tables` write them.

result = explanation.explain_run(experiment, "runs/adult", settings.Settings(limit=2000))
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from mtl import checks, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import run_directory
from mtl.tools.explaining import (
    attributions,
    dependence,
    gradients,
    importance,
    inputs,
    opened,
    outputs,
    rows,
    scores,
    settings,
)

# By default, partial dependence is computed only for the most important fields.
_MOST_FIELDS = 4
# The largest number of tasks for which predictions, partial dependence and gradients are explained,
# which needs a backward pass for each task. Importance needs no gradients, and covers all tasks.
MOST_TASKS = 20


@dataclasses.dataclass(frozen=True)
class Explanation:
    """All explanations of a checkpoint.

    Attributes:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      path: the path of the checkpoint.
      step: the step of the checkpoint.
      asked: the settings of the explanations.
      held: the rows for metrics and means, drawn at random from the whole split.
      shown: the rows whose predictions are explained, `asked.rows`.
      total: the number of rows in the split.
      tasks: the names of the explained tasks.
      fields: {column: the fields that the column reads}.
      importance: the importance of the inputs; None if no task has a metric or a label.
      attributions: the attributions for each row of `shown` and each task.
      dependences: the partial dependence on each field.
      outputs: {task: (names, kind)}, the names and the kind of the numbers that the task predicts.
      similarity: the similarity of the tasks' gradients; None if they are not compared.
      left_out: a line of text for each explanation that cannot be computed.
    """

    experiment: experiment_lib.Experiment
    model_dir: str
    path: str
    step: int
    asked: settings.Settings
    held: rows.Rows
    shown: rows.Rows
    total: int
    tasks: Sequence[str]
    fields: Mapping[str, Sequence[str]]
    importance: importance.Importance | None
    attributions: Sequence[attributions.Attribution]
    dependences: Sequence[dependence.Dependence]
    outputs: Mapping[str, tuple[Sequence[str], str]]
    similarity: gradients.Similarity | None
    left_out: Sequence[str]


@dataclasses.dataclass(frozen=True)
class _Built:
    """The tensors for explanations, which are added to the graph of the model."""

    scores: scores.Scores
    weights: types.Tensors
    outputs: Mapping[str, outputs.Output]
    gradients: Mapping[str, attributions.Gradients]


def explain_run(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    asked: settings.Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> Explanation:
    """Explain a checkpoint of a run, without writing files.

    Args:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      asked: the settings of the explanations.
      progress: called with a line of text about the current work.

    Raises:
      UserError: a task, a field, a class, a row or a split is unknown; there are too few rows; or
        no task has a label in the rows.
    """
    with run_directory.hold_checkpoint(model_dir, asked.checkpoint) as path:
        return _explain_run(experiment, model_dir, path, asked, progress)


def _explain_run(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    path: str,
    asked: settings.Settings,
    progress: Callable[[str], None],
) -> Explanation:
    data, model = experiment.data, experiment.model
    for task in asked.tasks:
        checks.one_of("--tasks", task, model.tasks)
    tasks = [task for task in model.tasks if not asked.tasks or task in asked.tasks]
    for task in asked.classes:
        checks.one_of("--class", task, tasks)
    # Check names before rows are read. Only the graph shows which fields the model reads, so names
    # of fields that the model does not read fail later.
    inputs.check_names(data.spec.features, asked.fields, asked.groups, asked.dependence)
    experiment.distribution.resources.take()
    read = rows.read_rows(experiment, asked.split, asked.limit, asked.rows)
    # Check the number of rows before the graph is built, which takes seconds.
    importance.require_rows(read.held)
    work = _Work(experiment, asked, read, tasks, progress)
    with opened.open_model(experiment, model_dir, path, read.held, work.build) as opening:
        input_list = inputs.list_inputs(data.spec, model.columns, opening.list_used())
        used_fields = [name for entry in input_list for name in entry.fields]
        inputs.check_names(used_fields, asked.fields, asked.groups, asked.dependence)
        work.explain(opening, inputs.choose_inputs(input_list, asked.fields, asked.groups))
    # Build a second graph, because gradients need the variables of training.
    work.compare_gradients(model_dir, path)
    work.tell_unused(used_fields)
    return Explanation(
        experiment=experiment,
        model_dir=model_dir,
        path=path,
        step=run_directory.step_saved(path),
        asked=asked,
        held=read.held,
        shown=read.shown,
        total=read.total,
        tasks=tasks,
        fields=inputs.fields_of_columns(model.columns),
        importance=work.importance,
        attributions=work.attributions,
        dependences=work.dependences,
        outputs={task: (entry.names, entry.kind) for task, entry in work.outputs.items()},
        similarity=work.similarity,
        left_out=work.left_out,
    )


class _Work:
    """Computes the parts of an explanation one after the other."""

    def __init__(
        self,
        experiment: experiment_lib.Experiment,
        asked: settings.Settings,
        read: rows.Read,
        tasks: Sequence[str],
        progress: Callable[[str], None],
    ):
        self._experiment, self._asked = experiment, asked
        self._held, self._shown = read.held, read.shown
        self._tasks, self._progress = tasks, progress
        self.left_out: list[str] = []
        self.outputs: Mapping[str, outputs.Output] = {}
        self.importance: importance.Importance | None = None
        self.attributions: list[attributions.Attribution] = []
        self.dependences: list[dependence.Dependence] = []
        self.similarity: gradients.Similarity | None = None

    def build(self, model: opened.Opened) -> _Built:
        """Add the tensors for explanations to the graph of the model."""
        heads = {task: model.heads[task] for task in self._tasks}
        first_tasks = self._tasks[:MOST_TASKS]
        descriptions = {
            task: outputs.describe_output(heads[task], model.logits[task]) for task in first_tasks
        }
        described = {task: output for task, output in descriptions.items() if output is not None}
        paths = {
            t: attributions.build_gradients(output, model.inputs) for t, output in described.items()
        }
        return _Built(
            # Importance covers all tasks, because it needs no backward pass.
            scores=scores.build_scores(model.heads, model.logits, model.labels, self._tasks),
            weights={task: head.label_weight(model.labels) for task, head in heads.items()},
            outputs=described,
            gradients={task: gradient for task, gradient in paths.items() if gradient is not None},
        )

    def explain(self, model: opened.Opened, input_list: Sequence[inputs.Input]) -> None:
        """Compute all explanations that use the graph of an evaluation."""
        built: _Built = model.extra
        self.outputs = built.outputs
        self._check_classes()
        first_tasks = self._tasks[:MOST_TASKS]
        if len(first_tasks) < len(self._tasks):
            self.left_out.append(
                f"Predictions, partial dependence and gradients: only the first {len(first_tasks)} "
                f"of {len(self._tasks)} tasks have them; choose other tasks with --tasks."
            )
        for task in first_tasks:
            if task not in built.outputs:
                kind = type(model.heads[task]).__name__
                self.left_out.append(
                    f"Predictions and partial dependence of {task}: {kind} predicts no "
                    "probability, value, density or score."
                )
        self._measure_importance(model, built, input_list)
        self._explain_rows(model, built)
        self._compute_dependence(model, built, input_list)

    def _check_classes(self) -> None:
        for task, name in self._asked.classes.items():
            fix = "No class of this task is explained."
            if task not in self._tasks[:MOST_TASKS]:
                fix = (
                    f"Only {MOST_TASKS} tasks are explained; choose this task with --tasks {task}."
                )
            is_explained = task in self.outputs
            rule = "be absent"
            checks.require(is_explained, f"--class of task {task!r}", rule, name, fix)
            checks.one_of(f"--class of task {task!r}", name, self.outputs[task].names)

    def _measure_importance(
        self, model: opened.Opened, built: _Built, input_list: Sequence[inputs.Input]
    ) -> None:
        feed = model.feed({}, self._held.labels)
        weights = model.session.run(dict(built.weights), feed)
        # `not >` instead of `<=` also counts a task with a weight of NaN as unlabelled.
        unlabelled = [task for task, weight in weights.items() if not weight > 0]
        where = f"split {self._held.split!r}"
        rule = "hold a label of a task in the rows that are read"
        checks.require(len(unlabelled) < len(weights), where, rule, self._held.size)
        undirected = [task for task in self._tasks if task not in built.scores.logits]
        for task in unlabelled:
            self.left_out.append(f"Importance for {task}: it has no label among these rows.")
        for task in undirected:
            self.left_out.append(
                f"Importance for {task}: its head does not say whether higher metrics are better."
            )
        if built.scores.metrics:
            orders = importance.draw_orders(
                self._held.size, self._asked.repeats, self._experiment.run.seed
            )
            self.importance = importance.measure(
                model, built.scores, self._held, input_list, orders, self._progress
            )

    def _explain_rows(self, model: opened.Opened, built: _Built) -> None:
        for task in built.outputs:
            if task not in built.gradients:
                self.left_out.append(
                    f"Predictions of {task}: its head has no gradients for the encoded columns."
                )
        if not self._asked.rows or not built.gradients:
            return
        self._progress("integrated gradients")
        shown_rows = self._shown
        # The baseline is the mean of all sampled rows, not only of the explained rows.
        baseline = attributions.make_baseline(
            model.encode(self._held.features), self._asked.baseline
        )
        encoded = model.encode(shown_rows.features)
        explained = {task: paths.output.explained for task, paths in built.gradients.items()}
        values = model.compute(explained, shown_rows.features)
        for number, row in enumerate(self._asked.rows):
            for task, paths in built.gradients.items():
                class_name = self._asked.classes.get(task)
                places = attributions.choose_places(values[task], paths.output.names, class_name)
                place, steps = int(places[number]), self._asked.steps
                attribution = attributions.explain_row(
                    model, paths, shown_rows, encoded, baseline, number, place, steps
                )
                # `explain_row` returns an index in `shown`: replace it by the
                # row's index in the split.
                self.attributions.append(dataclasses.replace(attribution, row=row))

    def _compute_dependence(
        self, model: opened.Opened, built: _Built, input_list: Sequence[inputs.Input]
    ) -> None:
        if not built.outputs:
            return
        fields = self._asked.dependence or self._choose_fields(input_list)
        if not fields:
            self.left_out.append("Partial dependence: no field has exactly one value per row.")
        for field in fields:
            self._progress(f"partial dependence on {field}")
            values = self._held.features[field]
            spec, columns = self._experiment.data.spec, self._experiment.model.columns
            is_number = inputs.is_number(spec, columns, field)
            reason = dependence.tell_unfit(values, is_number)
            if reason:
                self.left_out.append(f"Partial dependence on {field}: {reason}.")
                continue
            grid = dependence.make_grid(values, is_number)
            described = list(built.outputs.values())
            result = dependence.compute(model, described, self._held, field, grid, is_number)
            self.dependences.append(result)

    def _choose_fields(self, input_list: Sequence[inputs.Input]) -> list[str]:
        """Return the most important fields that have one value per row."""
        shapes = {name: field.shape for name, field in self._experiment.data.spec.fields.items()}
        order = (
            importance.rank_inputs(self.importance) if self.importance else range(len(input_list))
        )
        # Leave out groups of fields: a group has no single value to vary.
        single = [input_list[i].fields[0] for i in order if len(input_list[i].fields) == 1]
        return [field for field in single if not shapes[field]][:_MOST_FIELDS]

    def tell_unused(self, used_fields: Sequence[str]) -> None:
        """Add a line about the features that affect no prediction."""
        unused = [name for name in self._experiment.data.spec.features if name not in used_fields]
        if unused:
            line = (
                f"Neither a column nor a head reads {', '.join(unused)}, so no prediction depends"
            )
            self.left_out.append(f"{line} on {'them' if len(unused) > 1 else 'it'}.")

    def compare_gradients(self, model_dir: str, path: str) -> None:
        """Compare the gradients of the tasks, if there are several tasks."""
        tasks = self._tasks[:MOST_TASKS]
        if self._asked.batches == 0:
            return
        if len(tasks) < 2:
            self.left_out.append("Gradients: a comparison needs several tasks, but there is one.")
            return
        self._progress("gradients")
        add = gradients.build(tasks)
        opening = opened.open_model(
            self._experiment, model_dir, path, self._held, add, is_trained=True
        )
        with opening as model:
            split, most = self._held.split, self._asked.batches
            batches = rows.read_batches(self._experiment, split, most)
            similarity = gradients.compare(model, tasks, batches, self._progress)
        if len(similarity.places) == 1:
            self.left_out.append("Gradients: no two tasks share a trainable variable.")
            return
        self.similarity = similarity
        for number, task in enumerate(tasks):
            # The cosine of a gradient with itself is undefined only if the gradient is 0 or not
            # finite. A batch without labels has a gradient of 0.
            if similarity.counts[0, number, number] == 0:
                self.left_out.append(
                    f"Gradients of {task}: in every batch, the gradient is 0 or not finite."
                )
