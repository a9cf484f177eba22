"""Trains DeepCTR's models for `benchmarks.clients_speed`, which starts it in another Python.

The models train as in DeepCTR's documentation, by `fit` on a dict of arrays. Other libraries have
no L2 penalty on tables by default, so the penalty is off here. DeepCTR uses a single seed for all
layers by default, which this file does not change: experts of equal shape start from the same
values, and so do towers.
"""

import time

import answering
import numpy as np
import tensorflow as tf
from deepctr import feature_column, models


def train(case: dict) -> tuple[float, np.ndarray]:
    """Return the seconds of all epochs but the first, and the probabilities of the test rows."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(case["seed"])
    ids, labels, test_ids, _ = answering.load_arrays(case)
    fields = list(case["tables"])
    model = build_model(case)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(case["rate"]),
        loss=["binary_crossentropy"] * len(case["tasks"]),
    )
    times: list[float] = []

    class Clock(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            times.append(time.perf_counter())

    model.fit(
        {field: ids[:, index] for index, field in enumerate(fields)},
        [labels[:, index] for index in range(len(case["tasks"]))],
        batch_size=case["batch_size"],
        epochs=case["epochs"],
        verbose=0,
        callbacks=[Clock()],
    )
    test_inputs = {field: test_ids[:, index] for index, field in enumerate(fields)}
    predictions = model.predict(test_inputs, batch_size=4096, verbose=0)
    return times[-1] - times[0], np.concatenate(predictions, axis=1)


def build_model(case: dict) -> tf.keras.Model:
    """Return DeepCTR's model with the settings of the case."""
    # Each table needs its own initializer, because an initializer draws the same values at each
    # use.
    normal = tf.keras.initializers.TruncatedNormal
    columns = [
        feature_column.SparseFeat(
            field,
            rows,
            embedding_dim=case["width"],
            embeddings_initializer=normal(0.0, case["initial_stddev"]),
        )
        for field, rows in case["tables"].items()
    ]
    settings = {
        "expert_dnn_hidden_units": case["expert"],
        "tower_dnn_hidden_units": case["tower"],
        "gate_dnn_hidden_units": (),
        "l2_reg_embedding": 0,
        "task_types": ["binary"] * len(case["tasks"]),
        "task_names": case["tasks"],
    }
    if case["network"] == "MMoE":
        return models.MMOE(columns, num_experts=case["num_experts"], **settings)
    return models.PLE(
        columns,
        shared_expert_num=case["num_shared"],
        specific_expert_num=case["num_specific"],
        num_levels=case["levels"],
        **settings,
    )


def main() -> None:
    """Answer all cases of the standard input."""
    answering.answer_cases(train)


if __name__ == "__main__":
    main()
