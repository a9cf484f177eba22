"""Parts that are written after `mtl.types` alone, with and without deriving from its protocols."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, heads, types, verbs
from mtl.balancing import surgery, weighting
from tests import tiny

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Centred(types.Column):
    """A number minus its mean over the training split, and a table that does not move."""

    name: str = "centred"
    trainable: bool = False

    @property
    def columns(self):
        return {self.name: ["x"]}

    def accumulators(self):
        return {self.name: Mean()}

    def row_names(self, fitted):
        return {self.name: types.RowNames(names=("first", "second", "third"), axis=0)}

    def __call__(self, features, fitted):
        with tf1.variable_scope(self.name):
            kernel = tf1.get_variable("kernel", [3, 2], tf.float32)
        return {self.name: (features["x"] - fitted.for_column(self.name)["mean"]) @ kernel}


@dataclasses.dataclass
class Mean(types.Accumulator):
    """The mean of `x`."""

    def __post_init__(self):
        self._rows = []

    def update(self, fields):
        self._rows.append(fields["x"].numpy())

    def save(self, directory, column):
        return {"mean": np.concatenate(self._rows).mean(axis=0).tolist()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Absolute(types.Head):
    """The mean absolute error, of labels that are always there."""

    name: str

    def logits(self, tower):
        return tower @ tf1.get_variable("kernel", [tower.shape[1], 1], tf.float32)

    def loss(self, logits, labels):
        return tf.reduce_mean(tf.abs(logits[:, 0] - labels[self.name]))

    def label_weight(self, labels):
        return tf.cast(tf.size(labels[self.name]), tf.float32)

    def predictions(self, logits):
        return {"value": logits[:, 0]}

    def metrics(self, logits, labels):
        return {"average_loss": tf1.metrics.mean(tf.abs(logits[:, 0] - labels[self.name]))}

    def export_outputs(self, logits):
        return {"predict": compat.estimator.export.PredictOutput(self.predictions(logits))}

    def check(self, labels):
        return None


class Halves:
    """A weighting that does not derive from its protocol, and leaves out `reads_losses`."""

    def __call__(self, losses, step):
        return {task: 0.5 * loss for task, loss in losses.items()}


def _experiment(**parts):
    made = tiny.make(columns=[Centred()], train_steps=8, checkpoint_steps=4, steps_per_call=1)
    return dataclasses.replace(made, model=dataclasses.replace(made.model, **parts))


@pytest.mark.medium
def test_parts_of_the_required_members_alone_are_trained(tmp_path):
    made = _experiment(heads=[Absolute(name="size")], weighting=Halves())
    metrics, steps = verbs.train(made, str(tmp_path))
    assert steps == 8
    assert np.isfinite(metrics["size/average_loss"])
    kernel = "features/centred/kernel"
    before, after = (tiny.variables(tmp_path, step)[kernel] for step in (4, 8))
    np.testing.assert_array_equal(before, after)  # `trainable` of the column.
    names = json.loads((tmp_path / "row_names.json").read_text())
    assert names["features/centred/"]["names"] == ["first", "second", "third"]
    predicted = list(verbs.predict(made, str(tmp_path)))
    assert set(predicted[0]) == {"size/value"}


def test_defaults_of_members_that_a_part_leaves_out():
    head = Absolute(name="size")
    assert head.field == "size" and head.weight is None
    assert types.read_member(head, types.ClassHead, "class_names") == ()
    assert types.read_member(head, types.GroupHead, "are_rows_apart") is True
    assert types.read_member(head, types.FittedHead, "fitted")(None) is head
    assert types.read_member(head, types.AddingHead, "rows_added") == 0
    assert types.read_member(Halves(), types.Weighting, "reads_losses") is True
    assert types.read_member(tiny.Rows(splits={}), types.Source, "shard")("train", 2, 0) is None
    assert not isinstance(head, types.ExampleHead)
    assert isinstance(heads.Binary(name="size"), types.ExampleHead)


def test_a_required_member_cannot_be_left_out():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Silent(types.Weighting):
        """It has no `__call__`."""

    with pytest.raises(TypeError, match="__call__"):
        Silent()


def test_parts_are_checked_with_what_they_hold_and_rows_are_not_looked_through():
    @dataclasses.dataclass(frozen=True)
    class Part:
        held: object = None

        def check_model(self, model):
            model.append(self)

    inner, counts = Part(), {"a": 1, "b": None}
    outer = Part({"first": [inner, 3, "text"], "counts": counts})
    seen = []
    types.check_parts([outer, 0.5], "check_model", seen)
    assert seen == [outer, inner]


def test_an_experiment_looks_through_no_rows_of_its_source(monkeypatch):
    made, walked = tiny.make(), []
    monkeypatch.setattr(types, "check_parts", lambda parts, *_: walked.append(parts))
    dataclasses.replace(made, hooks=())
    of_experiment = walked[-1]
    assert made.model in of_experiment
    assert made.data not in of_experiment and made.data.source not in of_experiment


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({"whole_groups": "query"}, "Pipeline.sampler must keep all rows of a 'query' together"),
        ({"composes": ["gone"]}, "a task of 'own' must be one of"),
        ({"calibration_slices": {"gone": [1]}}, "calibration_slices of task 'own' must be one of"),
    ],
)
def test_rules_hold_for_a_head_of_ones_own(members, line):
    own = type("Own", (Absolute,), members)(name="own")
    made = tiny.make()
    with pytest.raises(checks.UserError, match=line):
        model = dataclasses.replace(made.model, heads=[*made.model.heads, own])
        dataclasses.replace(made, model=model)


def test_a_class_with_its_own_call_reads_losses_unless_it_says_no():
    class Inverse(weighting.Fixed):
        def __call__(self, losses, step):
            return {task: loss / tf.stop_gradient(loss) for task, loss in losses.items()}

    class Renamed(weighting.Fixed):
        """It computes the same."""

    class Halved(weighting.Fixed):
        reads_losses = False

        def __call__(self, losses, step):
            return {task: loss / 2 for task, loss in losses.items()}

    class Greatest(surgery.Sum):
        def __call__(self, losses, variables, batch=None):
            return super().__call__(losses, variables, batch)

    for part, reads in ((Inverse, True), (Renamed, False), (Halved, False), (Greatest, True)):
        assert part.reads_losses is reads
    assert surgery.Sum.adds_losses and not Greatest.adds_losses


def test_a_class_whose_call_comes_from_a_mixin_reads_losses_unless_it_says_no():
    class Halves:
        def __call__(self, losses, step):
            return {task: loss / 2 for task, loss in losses.items()}

    class Before(Halves, weighting.Fixed):
        """It uses the mixin's `__call__`."""

    class Behind(weighting.Fixed, Halves):
        """It uses the `__call__` of Fixed."""

    class Claimed(Halves, weighting.Fixed):
        reads_losses = False

    class Derived(Before):
        """It uses the mixin's `__call__`, too."""

    parts = (Before, True), (Behind, False), (Claimed, False), (Derived, True)
    for part, reads in parts:
        assert part.reads_losses is reads
