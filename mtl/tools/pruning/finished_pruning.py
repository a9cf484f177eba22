"""Prunes a finished run: chooses weights to cut, and writes a new run without these weights.

cut = finished_pruning.choose_cut(experiment, "runs/digits", checkpoint, rows=1024)
finished_pruning.write_run(experiment, "runs/digits", checkpoint, cut, "runs/digits_pruned")
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import checks, deferred
from mtl import experiment as experiment_lib
from mtl.checkpoints import input_state, mismatch, run_directory
from mtl.deferred import compat, tf, tf1
from mtl.model import graph_options
from mtl.runs import diagnosis, fitting, preparation
from mtl.sparsity import criteria, cuts, densities, granularity, pruning
from mtl.step import layer_hooks
from mtl.tools.pruning import sparse_gpt
from mtl.transfer import checkpoint as checkpoint_lib
from mtl.variables import averaging, patterns, pruned

with deferred.imports():
    from mtl.variables import average_saver

# A sorted file has similar rows side by side; small batches mix rows from many places of the file.
_BATCH = 32

Arrays = Mapping[str, np.ndarray]


class Cut(NamedTuple):
    """The weights to cut from a network.

    Attributes:
      masks: {variable: a mask of zeros and ones that broadcasts to the variable}.
      weights: {variable: new values} for variables whose remaining weights compensate for the cut.
    """

    masks: Arrays
    weights: Arrays

    @property
    def sparsity(self) -> float:
        """The share of zeros in all masks; a zero stands for a cut weight, unit or row."""
        ones = sum(mask.sum() for mask in self.masks.values())
        return 1 - float(ones) / sum(mask.size for mask in self.masks.values())


def require_parts(parts: Sequence[pruning.Pruning]) -> None:
    """Fail unless the parts for pruning can prune a finished run.

    Raises:
      UserError: `parts` is empty, or a part needs training steps.
    """
    fix = "Set --gin_file gin_configs/sparsity/finished.gin, or a file of yours."
    checks.require(len(parts) > 0, "MultiTaskModel.pruning", "hold a part", list(parts), fix)
    for part in parts:
        is_at_once = part.schedule.first_step == part.schedule.last_step
        rule = "be @pruning_schedules.OneShot() to prune a finished run"
        checks.require(is_at_once, "Pruning.schedule", rule, part.schedule)
        # `Averaged` needs only a mean over rows. All other criteria with `gathers` gather their
        # values in training steps.
        is_fit = not part.criterion.gathers or isinstance(part.criterion, criteria.Averaged)
        is_fit &= not part.criterion.reads_tasks
        rule = "need no training steps to prune a finished run"
        fix = "Magnitude, Random, Snip, Taylor, Wanda and SparseGpt need no steps."
        checks.require(is_fit, "Pruning.criterion", rule, part.criterion, fix)
        rule = "be None to prune a finished run"
        checks.require(part.regrowth is None, "Pruning.regrowth", rule, part.regrowth)
        if isinstance(part.criterion, criteria.SparseGpt):
            _check_sparse_gpt(part)


def _check_sparse_gpt(part: pruning.Pruning) -> None:
    is_fit = isinstance(part.granularity, granularity.Entries | granularity.NOfM)
    rule = "be Entries or NOfM for SparseGpt"
    checks.require(is_fit, "Pruning.granularity", rule, part.granularity)
    is_by_layer = not isinstance(part.density, densities.Global)
    is_by_layer = is_by_layer and not getattr(part.density, "per_unit", False)
    rule = "be Uniform or ErdosRenyiKernel for SparseGpt, which cuts layer by layer"
    checks.require(is_by_layer, "Pruning.density", rule, part.density)


def choose_cut(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    checkpoint: str,
    rows: int,
    find_progress: Callable[[pruning.Pruning], float] = lambda part: 1.0,
) -> Cut:
    """Choose which weights of a checkpoint `experiment.model.pruning` cuts.

    Args:
      experiment: the experiment of the run, whose training split supplies the rows in random order.
      model_dir: the folder of the run.
      checkpoint: the path of the checkpoint; if it has averages of weights, they count as the
        weights.
      rows: the number of training rows from which criteria compute the inputs or gradients that
        they need.
      find_progress: a function from a `Pruning` to the share of its final sparsity to reach now, in
        (0, 1].

    Raises:
      UserError: the parts cannot prune this run, or the checkpoint belongs to another run.
    """
    parts, split = experiment.model.pruning, experiment.data.train_split
    require_parts(parts)
    before = read_masks(experiment, model_dir, checkpoint)
    masks: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    explained = diagnosis.explain_run_errors(experiment.data, experiment.model, checkpoint, split)
    with explained, tf.Graph().as_default(), tf1.Session() as session:
        network = _Network(session, experiment, model_dir, checkpoint, rows)
        for part in parts:
            # If several entries of `MultiTaskModel.pruning` match a variable, the first entry
            # prunes the variable, as in training.
            part_masks = {n: before[n] for n in before if cuts.find_part(parts, n) is part}
            progress = find_progress(part)
            if isinstance(part.criterion, criteria.SparseGpt):
                cut = _reconstruct_layers(network, part, part.criterion, part_masks, progress)
                masks, weights = masks | {**cut.masks}, weights | {**cut.weights}
            else:
                masks |= _select_masks(network, part, part_masks, progress)
    return Cut(masks, weights)


def write_run(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    checkpoint: str,
    cut: Cut,
    output_dir: str,
    is_served: bool = True,
) -> str:
    """Write a new run that continues from a checkpoint without the cut weights.

    Args:
      experiment: the experiment of the new run.
      model_dir: the folder of the run that the checkpoint belongs to.
      checkpoint: the path of the checkpoint.
      cut: the weights of the checkpoint to cut, as `choose_cut` returns them.
      output_dir: the folder of the new run; it must not hold a run.
      is_served: True to start from the averages of the weights, if the checkpoint has averages, as
        exports and `choose_cut` do.

    Returns:
      The path of the new checkpoint.
    """
    parts, initial = experiment.model.pruning, _build_initial(experiment, model_dir)
    reader = tf.train.load_checkpoint(checkpoint)
    values = _read_values(reader, initial, is_served)
    for name, new in cut.weights.items():
        # Evaluations and exports read the average of a weight, so the average
        # gets the new value, too.
        names = {name, averaging.name_in(reader, name)} & values.keys()
        values |= dict.fromkeys(names, new.astype(values[name].dtype))
    # Each `Pruning` has reached its final sparsity, so training does not cut again (see
    # `pruned_step`).
    values |= {
        cuts.share_name(index): np.float64(part.final_sparsity) for index, part in enumerate(parts)
    }
    for name, mask in cut.masks.items():
        part = cuts.find_part(parts, name)
        values[pruned.mask_name(name)] = mask.astype(np.float32)
        _set_to_zero(values, initial, name, mask, part.hides_weights)
        # A cut unit also loses its bias and the parameters of its normalisation.
        for vector in cuts.list_beside(name) if part.granularity.is_of_units else []:
            if vector in values:
                _set_to_zero(values, initial, vector, mask.reshape([-1]), is_hidden=False)
    step = int(values[tf1.GraphKeys.GLOBAL_STEP])
    run_directory.copy_notes(model_dir, output_dir)
    input_state.copy_states(os.path.dirname(checkpoint), output_dir, step)
    return checkpoint_lib.replace_checkpoint(values, os.path.join(output_dir, f"model.ckpt-{step}"))


def _read_values(reader: Any, initial: Arrays, is_served: bool) -> dict[str, np.ndarray]:
    """Return {variable: value} of a checkpoint; averages replace weights if `is_served`."""
    values = {
        # The checkpoint may lack masks: start from initial masks, which the new cut replaces.
        name: first if pruned.is_of_pruning(name) else reader.get_tensor(name)
        for name, first in initial.items()
    }
    for name in initial if is_served else ():
        average = averaging.name_in(reader, name)
        if average != name:
            # `averaging.value_in` also updates the averages of table rows that
            # recent steps did not use.
            values[name] = values[average] = averaging.value_in(reader, average)
        elif averaging.is_decay(name):
            values[name] = averaging.value_in(reader, name)
    return values


def _set_to_zero(
    values: dict[str, np.ndarray], initial: Arrays, name: str, mask: np.ndarray, is_hidden: bool
) -> None:
    """Set cut weights of a variable to 0, and reset their entries in the optimizer's slots."""
    for owner in [n for n in values if pruned.is_owner(n, name)]:
        values[owner] = np.where(mask > 0, values[owner], np.zeros_like(values[owner]))
    # Reset the slots of the optimizer, because momentum would move cut weights away from 0.
    for other in [n for n in values if n.startswith(f"{name}/") and not pruned.is_state(n)]:
        # Slots of another shape, such as a step counter, have no entry for each weight.
        if values[other].shape == values[name].shape:
            values[other] = np.where(mask > 0, values[other], initial[other])
    if not is_hidden:
        values[name] = np.where(mask > 0, values[name], np.zeros_like(values[name]))


def _build_initial(experiment: experiment_lib.Experiment, model_dir: str) -> Arrays:
    """Return the initial value of every variable of a training."""
    with tf.Graph().as_default(), tf1.Session() as session:
        preparation.build_training(experiment.data, experiment.model, experiment.run, model_dir)
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        return session.run({patterns.variable_name(v): v for v in tf1.global_variables()})


def read_masks(
    experiment: experiment_lib.Experiment, model_dir: str, checkpoint: str
) -> dict[str, np.ndarray]:
    """Return {pruned variable: its mask in a checkpoint}; a mask of ones if there is none.

    Args:
      experiment: the experiment, whose `pruning` says which variables have masks.
      model_dir: the folder of the run that the checkpoint belongs to.
      checkpoint: the path of the checkpoint.

    Raises:
      UserError: the checkpoint belongs to another model, or the saved masks do not fit the settings
        in `pruning`.
    """
    initial = _build_initial(experiment, model_dir)
    saved = dict(tf.train.list_variables(checkpoint))
    mismatch.require_same(
        checkpoint,
        # Leave out masks, because only the checkpoint of a pruned run has masks.
        {name: shape for name, shape in saved.items() if not pruned.is_of_pruning(name)},
        {name: v.shape for name, v in initial.items() if not pruned.is_of_pruning(name)},
    )
    masks = {name: initial[pruned.mask_name(name)] for name in initial if _is_cut(name, initial)}
    for name, mask in load_masks(checkpoint).items():
        rule = f"choose all cut weights of {checkpoint}, also {name!r}"
        all_patterns = [list(part.patterns) for part in experiment.model.pruning]
        # A variable that no pattern matches would lose its mask, and its cut
        # weights would grow again.
        checks.require(name in masks, "Pruning.patterns", rule, all_patterns)
        rule = f"cut as in {checkpoint}, where the mask of {name!r} has shape {list(mask.shape)}"
        part = cuts.find_part(experiment.model.pruning, name)
        fits = mask.shape == masks[name].shape
        checks.require(fits, "Pruning.granularity", rule, part.granularity)
        masks[name] = mask
    return masks


def load_masks(checkpoint: str) -> dict[str, np.ndarray]:
    """Return the pruning masks that a checkpoint contains.

    Args:
      checkpoint: the path of the checkpoint.

    Returns:
      {pruned variable: its mask}; {} if the run does not prune.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    names = reader.get_variable_to_shape_map()
    cut = [name for name in names if _is_cut(name, names)]
    return {name: reader.get_tensor(pruned.mask_name(name)) for name in cut}


def _is_cut(name: str, names: Collection[str]) -> bool:
    return pruned.mask_name(name) in names


class _Network:
    """A checkpoint's network with the weights that an export has, which reads training rows."""

    def __init__(
        self,
        session: tf.compat.v1.Session,
        experiment: experiment_lib.Experiment,
        model_dir: str,
        checkpoint: str,
        rows: int,
    ):
        data, statistics = experiment.data, fitting.load_statistics(model_dir)
        batch = min(_BATCH, rows)
        batches = dataclasses.replace(data, batch_size=batch).one_pass(data.train_split)
        # The buffer counts batches; it holds as many rows as the shuffle buffer of training.
        batches = batches.shuffle(max(1, data.shuffle_buffer // batch), seed=experiment.run.seed)
        # -(-rows // batch) is rows / batch, rounded up.
        self._iterator = tf1.data.make_initializable_iterator(batches.take(-(-rows // batch)))
        model = experiment.model.fill_schedules(experiment.run.train_steps).fitted(statistics)
        tf1.train.get_or_create_global_step()
        # While layers are built, they report the inputs of their kernels to `notes`.
        notes = layer_hooks.NoteInputs()
        features, labels = self._iterator.get_next()
        self._gradients: dict[str, Any] = {}
        with layer_hooks.attach(notes):
            if any(part.criterion.reads_gradients for part in model.pruning):
                balanced = model.differentiate(features, labels, statistics)
                names = map(patterns.variable_name, balanced.variables)
                self._gradients = dict(zip(names, balanced.gradients, strict=True))
            else:
                mode = compat.estimator.ModeKeys.EVAL
                model.model_fn(
                    features,
                    labels,
                    mode,
                    options=graph_options.GraphOptions(statistics=statistics),
                )
        self.inputs, self._session = notes.found, session
        self.variables = {patterns.variable_name(v): v for v in tf1.global_variables()}
        # Sort the kernels from the input of the network to its heads.
        self.order = [name for name in notes.found if name in self.variables]
        # `average_saver` restores the averages of a checkpoint as the weights, as exports do.
        saver = average_saver.Saver()
        session.run(tf1.tables_initializer())
        saver.restore(session, checkpoint)

    def average(self, fetches: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Return the means of tensors over all batches."""
        totals, count = {name: np.float64(0) for name in fetches}, 0
        for values in self._run(fetches):
            totals = {name: totals[name] + np.float64(values[name]) for name in fetches}
            count += 1
        return {name: total / count for name, total in totals.items()}

    def _run(self, fetches: Mapping[str, tf.Tensor]) -> Iterator[Arrays]:
        # Start each pass at the first batch.
        self._session.run(self._iterator.initializer)
        # With no fetches, the session would read no batch, and the loop would never end.
        while fetches:
            try:
                yield self._session.run(fetches)
            except tf.errors.OutOfRangeError:
                return

    def find_gradients(self, names: Sequence[str]) -> dict[str, Any]:
        """Return {kernel: its gradient}, with the loss weights and gradient surgery of training."""
        gradients = {name: self._gradients.get(name) for name in names}
        for name, gradient in gradients.items():
            rule = "choose kernels that affect a loss"
            checks.require(isinstance(gradient, tf.Tensor), "Pruning.patterns", rule, name)
        return gradients

    def measure_inputs(self, names: Sequence[str]) -> dict[str, tf.Tensor]:
        """Return {kernel: the mean squares of its inputs}."""
        self.require_inputs(names)
        return {name: criteria.average_squares(self.inputs[name]) for name in names}

    def require_inputs(self, names: Sequence[str]) -> None:
        """Fail unless layers have reported the inputs of the kernels."""
        for name in names:
            rule = "choose kernels of layers.dense and layers.conv"
            fix = "The criterion reads inputs of layers, which only dense and conv report."
            checks.require(name in self.inputs, "Pruning.patterns", rule, name, fix)

    def read(self, name: str) -> np.ndarray:
        """Return the current value of a variable."""
        return self._session.run(self.variables[name])

    def write(self, name: str, value: np.ndarray) -> None:
        """Set a variable to a value."""
        self.variables[name].load(value, self._session)


def _select_masks(
    network: _Network, part: pruning.Pruning, before: Arrays, progress: float
) -> dict[str, np.ndarray]:
    """Return {variable: mask} for the variables of a part; weights with low scores are cut."""
    names, criterion = list(before), part.criterion
    gradients = network.find_gradients(names) if criterion.reads_gradients else {}
    inputs = network.measure_inputs(names) if criterion.reads_inputs else {}
    totals: dict[str, np.ndarray] = {}
    if isinstance(criterion, criteria.Averaged):
        weights = network.variables
        kernels = [
            criteria.Seen(name, weights[name], gradients.get(name), None, inputs.get(name))
            for name in names
        ]
        totals = network.average({kernel.name: criterion.observe(kernel) for kernel in kernels})
        gradients = {}
    means = network.average(gradients)
    with tf.Graph().as_default(), tf1.Session() as session:
        kernels = [
            criteria.Seen(
                name=name,
                # Use constants, because scores are computed in a separate
                # graph without the variables.
                weights=tf.constant(network.read(name)),
                gradient=_make_constant(means.get(name)),
                total=_make_constant(totals.get(name)),
            )
            for name in names
        ]
        masks = [tf.constant(mask) for mask in before.values()]
        selected = part.select_masks(kernels, masks, tf.constant(progress, tf.float64))
        is_finite, new = session.run((selected.is_finite, selected.masks))
    checks.require(bool(is_finite), "Pruning.criterion", "give finite scores", criterion)
    return dict(zip(names, new, strict=True))


def _make_constant(value: np.ndarray | None) -> tf.Tensor | None:
    return None if value is None else tf.constant(value, tf.float32)


def _reconstruct_layers(
    network: _Network,
    part: pruning.Pruning,
    criterion: criteria.SparseGpt,
    before: Arrays,
    progress: float,
) -> Cut:
    """Cut layer by layer; the input of a layer comes from earlier layers that are already cut."""
    rule = "choose kernels of layers.dense for SparseGpt"
    fix = "SparseGpt cuts kernels of the shape [inputs, units]."
    network.require_inputs(list(before))
    for name, mask in before.items():
        checks.require(mask.ndim == 2, "Pruning.patterns", rule, name, fix)
    shapes = [mask.shape for mask in before.values()]
    shares = part.density.densities(shapes, part.final_sparsity)
    density = dict(zip(before, shares, strict=True))
    is_by_few = isinstance(part.granularity, granularity.NOfM)
    n_of_m = (part.granularity.n, part.granularity.m) if is_by_few else None
    masks, weights = {}, {}
    # Go from the input to the heads, so that the inputs of a layer reflect all earlier cuts.
    for name in [name for name in network.order if name in before]:
        flat = tf.reshape(network.inputs[name], [-1, before[name].shape[0]])  # [rows, D]
        flat = tf.cast(flat, tf.float64)
        # [D, D]; a mean over rows leads to the same cut as a sum, because they differ by a factor.
        gramian = network.average({name: tf.matmul(flat, flat, transpose_a=True)})[name]
        is_kept, new = sparse_gpt.prune_layer(
            network.read(name),
            gramian,
            (1 - density[name]) * progress,
            n_of_m=n_of_m,
            kept=before[name] > 0,
            block=criterion.block,
            damping=criterion.damping,
        )
        # Write the cut layer to the session, so that later layers compute with it.
        network.write(name, new)
        masks[name], weights[name] = is_kept.astype(np.float32), new
    return Cut(masks, weights)
