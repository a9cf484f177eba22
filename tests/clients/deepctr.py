"""DeepCTR's networks in an Estimator's `model_fn`, with the parts of docs/own_model_fn.md.

    python -m venv .clients/deepctr
    .clients/deepctr/bin/pip install '.[heads]' deepctr
    .clients/deepctr/bin/python -m tests.clients.deepctr

DeepCTR is not changed. The program prints its results, and fails if one of them is wrong.
"""

import functools
import tempfile

import numpy as np
import tensorflow as tf

import mtl.compat  # noqa: F401  # Before the library, which reads tf.estimator.
from mtl import model_fns, spec, transfer
from mtl.balancing import methods, surgery
from mtl.optimization import clipping, optimizers, update
from mtl.tools import clip_audit
from mtl.tools.clip_audit import visits

import deepctr  # isort: skip
import deepctr.estimator  # isort: skip
from deepctr import feature_column, models  # isort: skip

tf1 = tf.compat.v1
TASKS, STEPS, HALF = ("click", "order"), 40, 20
_RANDOM = np.random.default_rng(0)
_IDS = {field: _RANDOM.integers(0, 50, 512).astype(np.int64) for field in ("user", "item")}
_SCORE = (_IDS["user"] % 7 - 3) + (_IDS["item"] % 5 - 2)
_LABELS = {"click": (_SCORE > 0).astype(np.float32), "order": (_SCORE > 2).astype(np.float32)}
SPEC = spec.Spec(features=dict.fromkeys(_IDS, "int64"), labels={})
ADAM = optimizers.Adam(learning_rate=0.01)


def read_rows() -> tf.data.Dataset:
    """Return shuffled batches, without end."""
    rows = {**_IDS, "row": np.arange(512)}
    made = tf.data.Dataset.from_tensor_slices((rows, _LABELS))
    return made.shuffle(512, seed=1).repeat().batch(64, drop_remainder=True)


def build_columns() -> list:
    """Return DeepCTR's columns of the two ids."""
    return [feature_column.SparseFeat(field, 50, embedding_dim=4) for field in _IDS]


def mmoe(features, labels, mode, config, params):
    """DeepCTR's MMOE, with our step, or with TensorFlow's alone where `plain` is set."""
    training = mode == tf.estimator.ModeKeys.TRAIN
    model = models.MMOE(
        build_columns(),
        expert_dnn_hidden_units=(16,),
        tower_dnn_hidden_units=(8,),
        dnn_use_bn=True,
        task_names=TASKS,
    )

    def build(rows, training):
        given = {field: tf.identity(rows[field]) for field in _IDS}
        outputs = dict(zip(TASKS, model(given, training=training), strict=True))
        if training:
            model_fns.collect_updates(model, given)
        return {task: tf.squeeze(output, -1) for task, output in outputs.items()}

    predicted = build(features, training)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predicted)

    def row_losses(predicted, labels):
        entropy = tf.keras.losses.binary_crossentropy
        return {
            task: entropy(labels[task][:, None], predicted[task][:, None]) for task in predicted
        }

    losses = {task: tf.reduce_mean(of) for task, of in row_losses(predicted, labels).items()}
    if params.get("plain"):
        total = tf.add_n([*losses.values(), *tf1.losses.get_regularization_losses()])
        with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
            step = tf1.train.get_global_step()
            train_op = tf1.train.AdamOptimizer(0.01).minimize(total, step)
        return tf.estimator.EstimatorSpec(mode, loss=total, train_op=train_op)
    audit, observe = params.get("audit"), None
    if audit:
        observe = audit.observe(
            lambda rows: row_losses(build(rows[0], False), rows[1]),
            (features, labels),
            ids=features["row"],
        )
    step = model_fns.build_step(losses, observe=observe, **params["step"])
    if "start" in params:
        model_fns.warm_start(params["start"], config.model_dir)
    return tf.estimator.EstimatorSpec(mode, loss=step.loss, train_op=step.train_op)


def train(model_dir: str, stops=(STEPS,), listeners=(), **params) -> tf.estimator.Estimator:
    """Train up to each of these steps, each time in a new Estimator."""
    for steps in stops:
        estimator = tf.estimator.Estimator(
            functools.partial(mmoe, params=params),
            config=tf.estimator.RunConfig(model_dir=model_dir, tf_random_seed=1),
        )
        rows = model_fns.SavedInput(read_rows, model_dir)
        estimator.train(rows.read, max_steps=steps, saving_listeners=[rows, *listeners])
    return estimator


def read_weights(folder: str) -> dict[str, np.ndarray]:
    """Return the variables of the latest checkpoint, without those of optimizers."""
    reader = tf.train.load_checkpoint(folder)
    names = [name for name in reader.get_variable_to_shape_map() if "Adam" not in name]
    return {name: reader.get_tensor(name) for name in names if not name.startswith("beta")}


def differ(one: dict, other: dict) -> float:
    """Return by how much two sets of weights differ at most."""
    assert one.keys() == other.keys(), set(one) ^ set(other)
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def try_mmoe(folder: str) -> None:
    """Try every part on DeepCTR's MMOE."""
    train(f"{folder}/plain", plain=True)
    # Keras draws the initial weights by itself, so all runs start from the plain run's weights.
    first = transfer.WarmStart(source=f"{folder}/plain/model.ckpt-0", include=["."])
    train(f"{folder}/ours", start=first, step={"update": update.Update(optimizer=ADAM)})
    weights = read_weights(f"{folder}/plain")
    off = differ(read_weights(f"{folder}/ours"), weights)
    averages = [name for name in weights if "moving_mean" in name]
    print(f"MMOE, {len(weights)} variables: {off:.1e} from TensorFlow's own Adam")
    assert off < 1e-5, off
    assert all(np.abs(weights[name]).max() > 0 for name in averages), averages

    audit = model_fns.Audit(clip_audit.ClipAudit(), f"{folder}/balanced")
    balanced = {
        "update": update.Update(optimizer=ADAM, clipping=clipping.GlobalNorm(max_norm=0.1)),
        "surgery": surgery.Combine(method=methods.PCGrad()),
    }
    settings = {"step": balanced, "start": first}
    estimator = train(f"{folder}/balanced", audit=audit, listeners=[audit], **settings)
    once = read_weights(f"{folder}/balanced")
    print(f"PCGrad and clipping: {differ(once, weights):.1e} from the plain sum")
    assert differ(once, weights) > 1e-3
    seen, _ = visits.read(f"{folder}/balanced/clip_audit/training")
    assert len(seen["id"]) == 64 * STEPS, len(seen["id"])
    print(f"Audit: {len(seen['id'])} visits, largest norm {seen['norm'].max():.3f}")

    train(f"{folder}/stopped", stops=(HALF, STEPS), **settings)
    off = differ(read_weights(f"{folder}/stopped"), once)
    print(f"Stopped at step {HALF} and gone on: {off:.1e} from the run that was not")
    assert off == 0, off

    with open(f"{folder}/stopped/warm_start.txt") as file:
        print(file.readline().strip().replace(folder, "..."))
    path = model_fns.export(
        estimator,
        f"{folder}/export",
        SPEC,
        lambda: tf.data.Dataset.from_tensor_slices(_IDS).batch(64),
    )
    print("Exported and checked:", path.replace(folder, "..."))


def try_deep_fm(folder: str) -> None:
    """Give the `model_fn` of DeepCTR's own Estimator another step."""
    ids = [tf.feature_column.categorical_column_with_identity(field, 50) for field in _IDS]
    linear, deep = (
        [tf.feature_column.embedding_column(of, width) for of in ids] for width in (1, 4)
    )
    # Its loss holds its penalties, which the update would add once more.
    own = deepctr.estimator.DeepFMEstimator(
        linear, deep, (16,), l2_reg_linear=0, l2_reg_embedding=0
    )

    def model_fn(features, labels, mode, config):
        made = own.model_fn(features, labels, mode, config)
        if mode != tf.estimator.ModeKeys.TRAIN:
            return made
        clipped = update.Update(optimizer=ADAM, clipping=clipping.GlobalNorm(max_norm=1.0))
        step = model_fns.build_step({"click": made.loss / 64}, update=clipped)
        return made._replace(loss=step.loss, train_op=step.train_op)

    estimator = tf.estimator.Estimator(model_fn, model_dir=folder)

    def rows():
        return read_rows().map(lambda features, labels: (features, labels["click"]))

    estimator.train(rows, max_steps=200)
    metrics = estimator.evaluate(rows, steps=8)
    print(f"DeepFMEstimator with our step: AUC {metrics['AUC']:.3f}")
    assert metrics["AUC"] > 0.9, metrics


def main() -> None:
    """Try both."""
    with tempfile.TemporaryDirectory() as folder:
        try_mmoe(folder)
        try_deep_fm(f"{folder}/deep_fm")
    print("DeepCTR", deepctr.__version__, "on TensorFlow", tf.__version__, "works")


if __name__ == "__main__":
    main()
