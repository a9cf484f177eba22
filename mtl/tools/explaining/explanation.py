"""Computes all explanations of a checkpoint once, for `describe` and `tables`.

found = explanation.explain_run(experiment, "runs/adult", settings.Settings(limit=2000))
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

# By default, only the most important fields get partial dependence.
_MOST_FIELDS = 4
# Each of these tasks takes a backward pass; importance is measured for all tasks.
MOST_TASKS = 20


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The explanations of a checkpoint.

    Attributes:
      experiment: the experiment of the run.
      model_dir: the folder of the run.
      path: the path of the checkpoint.
      step: the step of the checkpoint.
      asked: the settings.
      held: the measured rows, drawn from the whole split.
      shown: the rows whose predictions are explained, `asked.rows`.
      total: how many rows the split has.
      tasks: the tasks that are explained.
      fields: {column: the fields that it is made of}.
      importance: the importance of the inputs; None if no task has a metric or a label.
      attributions: the attributions of the chosen rows, task by task.
      dependences: the partial dependences, field by field.
      outputs: {task: (names, kind)} of the numbers in partial dependence.
      similarity: the similarity of the gradients; None if they are not compared.
      left_out: a line for each explanation that is impossible.
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
    """The tensors that explanations add to the graph of the model."""

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
      asked: what is explained, and how precisely.
      progress: called with a line on the current work.

    Raises:
      UserError: a task, a field, a class, a row or a split is unknown, there are too few rows, or
        no task has a label among them.
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
    # Misspelt names fail here, before rows are read. Fields that no column reads fail below, as
    # only the graph knows them.
    inputs.check_names(data.spec.features, asked.fields, asked.groups, asked.dependence)
    experiment.distribution.resources.take()
    read = rows.read_rows(experiment, asked.split, asked.limit, asked.rows)
    # Before the graph is built.
    importance.require_rows(read.held)
    work = _Work(experiment, asked, read, tasks, progress)
    with opened.open_model(experiment, model_dir, path, read.held, work.build) as opening:
        listed = inputs.list_inputs(data.spec, model.columns, opening.list_used())
        used = [name for one in listed for name in one.fields]
        inputs.check_names(used, asked.fields, asked.groups, asked.dependence)
        work.explain(opening, inputs.choose_inputs(listed, asked.fields, asked.groups))
    # In a separate graph, as gradients need variables as in training.
    work.compare_gradients(model_dir, path)
    work.tell_unused(used)
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
        outputs={task: (one.names, one.kind) for task, one in work.outputs.items()},
        similarity=work.similarity,
        left_out=work.left_out,
    )


class _Work:
    """Computes the parts of an explanation in turn."""

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
        """Add the tensors for explanations to the graph."""
        heads = {task: model.heads[task] for task in self._tasks}
        few = self._tasks[:MOST_TASKS]
        said = {task: outputs.describe_output(heads[task], model.logits[task]) for task in few}
        known = {task: output for task, output in said.items() if output is not None}
        paths = {t: attributions.build_gradients(one, model.inputs) for t, one in known.items()}
        return _Built(
            # Importance covers all tasks: it needs no backward pass.
            scores=scores.build_scores(model.heads, model.logits, model.labels, self._tasks),
            weights={task: head.label_weight(model.labels) for task, head in heads.items()},
            outputs=known,
            gradients={task: built for task, built in paths.items() if built is not None},
        )

    def explain(self, model: opened.Opened, chosen: Sequence[inputs.Input]) -> None:
        """Compute the explanations that use the graph."""
        built: _Built = model.extra
        self.outputs = built.outputs
        self._check_classes()
        few = self._tasks[:MOST_TASKS]
        if len(few) < len(self._tasks):
            self.left_out.append(
                f"Predictions, partial dependence and gradients: of {len(self._tasks)} tasks these "
                f"are of the first {len(few)}; --tasks names others."
            )
        for task in few:
            if task not in built.outputs:
                kind = type(model.heads[task]).__name__
                self.left_out.append(
                    f"Predictions and partial dependence of {task}: {kind} predicts no "
                    "probability, value, density or score."
                )
        self._measure_importance(model, built, chosen)
        self._explain_rows(model, built)
        self._compute_dependence(model, built, chosen)

    def _check_classes(self) -> None:
        for task, name in self._asked.classes.items():
            fix = f"No class of it is explained; --tasks {task} explains it first."
            is_explained = task in self.outputs
            rule = "be absent"
            checks.require(is_explained, f"--class of task {task!r}", rule, name, fix)
            checks.one_of(f"--class of task {task!r}", name, self.outputs[task].names)

    def _measure_importance(
        self, model: opened.Opened, built: _Built, chosen: Sequence[inputs.Input]
    ) -> None:
        fed = model.feed({}, self._held.labels)
        weights = model.session.run(dict(built.weights), fed)
        # `not >` instead of `<=`, so that a weight of NaN is lacking too.
        lacking = [task for task, weight in weights.items() if not weight > 0]
        where, rule = (
            f"split {self._held.split!r}",
            "hold a label of a task among the rows that are read",
        )
        checks.require(len(lacking) < len(weights), where, rule, self._held.size)
        without = [task for task in self._tasks if task not in built.scores.logits]
        for task in lacking:
            self.left_out.append(f"Importance for {task}: it has no label among these rows.")
        for task in without:
            self.left_out.append(
                f"Importance for {task}: its head does not say of a metric which way is better."
            )
        if built.scores.metrics:
            orders = importance.draw_orders(
                self._held.size, self._asked.repeats, self._experiment.run.seed
            )
            self.importance = importance.measure(
                model, built.scores, self._held, chosen, orders, self._progress
            )

    def _explain_rows(self, model: opened.Opened, built: _Built) -> None:
        for task in built.outputs:
            if task not in built.gradients:
                self.left_out.append(
                    f"Predictions of {task}: no gradient goes from its head to the columns."
                )
        if not self._asked.rows or not built.gradients:
            return
        self._progress("integrated gradients")
        shown = self._shown
        # The mean of all drawn rows, not only of the explained ones.
        baseline = attributions.make_baseline(
            model.encode(self._held.features), self._asked.baseline
        )
        encoded = model.encode(shown.features)
        explained = {task: one.output.explained for task, one in built.gradients.items()}
        values = model.compute(explained, shown.features)
        for number, row in enumerate(self._asked.rows):
            for task, own in built.gradients.items():
                wanted = self._asked.classes.get(task)
                places = attributions.choose_places(values[task], own.output.names, wanted)
                place, steps = int(places[number]), self._asked.steps
                found = attributions.explain_row(
                    model, own, shown, encoded, baseline, number, place, steps
                )
                # In the result, `row` is the place in the split; until here it was the place in
                # `shown`.
                self.attributions.append(dataclasses.replace(found, row=row))

    def _compute_dependence(
        self, model: opened.Opened, built: _Built, chosen: Sequence[inputs.Input]
    ) -> None:
        if not built.outputs:
            return
        fields = self._asked.dependence or self._choose_fields(chosen)
        if not fields:
            self.left_out.append("Partial dependence: no field has one value a row.")
        for field in fields:
            self._progress(f"partial dependence on {field}")
            values = self._held.features[field]
            spec, columns = self._experiment.data.spec, self._experiment.model.columns
            is_number = inputs.is_number(spec, columns, field)
            why = dependence.tell_unfit(values, is_number)
            if why:
                self.left_out.append(f"Partial dependence on {field}: {why}.")
                continue
            grid = dependence.make_grid(values, is_number)
            said = list(built.outputs.values())
            found = dependence.compute(model, said, self._held, field, grid, is_number)
            self.dependences.append(found)

    def _choose_fields(self, chosen: Sequence[inputs.Input]) -> list[str]:
        """Return the most important fields with one value a row."""
        shapes = {name: field.shape for name, field in self._experiment.data.spec.fields.items()}
        order = importance.rank_inputs(self.importance) if self.importance else range(len(chosen))
        # A group of fields has no single value to vary.
        single = [chosen[i].fields[0] for i in order if len(chosen[i].fields) == 1]
        return [field for field in single if not shapes[field]][:_MOST_FIELDS]

    def tell_unused(self, used: Sequence[str]) -> None:
        """Add a line on features that do not affect any prediction."""
        unused = [name for name in self._experiment.data.spec.features if name not in used]
        if unused:
            line = f"Neither a column nor a head reads {', '.join(unused)}: no prediction depends"
            self.left_out.append(f"{line} on {'them' if len(unused) > 1 else 'it'}.")

    def compare_gradients(self, model_dir: str, path: str) -> None:
        """Compare the gradients of the tasks, if there are several."""
        tasks = self._tasks[:MOST_TASKS]
        if self._asked.batches == 0:
            return
        if len(tasks) < 2:
            self.left_out.append("Gradients: there is one task, and nothing to compare it with.")
            return
        self._progress("gradients")
        add = gradients.build(tasks)
        opening = opened.open_model(
            self._experiment, model_dir, path, self._held, add, is_trained=True
        )
        with opening as model:
            split, most = self._held.split, self._asked.batches
            batches = rows.read_batches(self._experiment, split, most)
            found = gradients.compare(model, tasks, batches, self._progress)
        if len(found.places) == 1:
            self.left_out.append("Gradients: no trainable variable is reached by two tasks.")
            return
        self.similarity = found
        for number, task in enumerate(tasks):
            # The cosine of a gradient with itself is undefined only for 0 and for no label.
            if found.counts[0, number, number] == 0:
                self.left_out.append(f"Gradients of {task}: no batch has one other than 0.")
