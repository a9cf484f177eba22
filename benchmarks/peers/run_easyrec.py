"""Trains EasyRec's models for `benchmarks.clients_speed`, which starts it in another Python.

`import mtl.compat` provides the Estimator that newer versions of TensorFlow lack. The protocol
buffers of EasyRec must be compiled for the installed runtime. The configuration of EasyRec is built
from the case. Batch norm and L2 penalties, which EasyRec has by default, are off. EasyRec's
Estimator trains from CSV files.
"""

import os
import tempfile
import time

import answering
import numpy as np
import tensorflow as tf

import mtl.compat  # noqa: F401  # Before EasyRec, which imports tf.estimator.

from easy_rec.python import main as easyrec  # isort: skip
from easy_rec.python.utils import config_util  # isort: skip


def write_config(case: dict, model_dir: str) -> str:
    """Return the configuration of EasyRec for a case, as text."""
    names = [*case["tasks"], *case["tables"]]
    inputs = "\n".join(f'input_fields {{ input_name: "{n}" input_type: INT32 }}' for n in names)
    labels = "\n".join(f'label_fields: "{task}"' for task in case["tasks"])
    features = "\n".join(
        f'features {{ input_names: "{field}" feature_type: IdFeature '
        f"embedding_dim: {case['width']} num_buckets: {rows} "
        "initializer { truncated_normal_initializer { mean: 0.0 "
        f"stddev: {case['initial_stddev']} }} }} }}"
        for field, rows in case["tables"].items()
    )
    group = "\n".join(f'feature_names: "{field}"' for field in case["tables"])
    expert, tower = write_dnn(case["expert"]), write_dnn(case["tower"])
    towers = "\n".join(
        f'task_towers {{ tower_name: "{task}" label_name: "{task}" dnn {{ {tower} }} '
        "num_class: 1 weight: 1.0 loss_type: CLASSIFICATION }"
        for task in case["tasks"]
    )
    if case["network"] == "MMoE":
        body = f"mmoe {{ expert_dnn {{ {expert} }} num_expert: {case['num_experts']}"
    else:
        levels = "\n".join(
            f'extraction_networks {{ network_name: "level_{level}" '
            f"expert_num_per_task: {case['num_specific']} share_num: {case['num_shared']} "
            f"task_expert_net {{ {expert} }} share_expert_net {{ {expert} }} }}"
            for level in range(case["levels"])
        )
        body = f"ple {{ {levels}"
    return f"""
        train_input_path: "{case["csv"]["train"]}"
        eval_input_path: "{case["csv"]["test"]}"
        model_dir: "{model_dir}"
        train_config {{
          optimizer_config {{ adam_optimizer {{ learning_rate {{
            constant_learning_rate {{ learning_rate: {case["rate"]} }} }} }} }}
          save_checkpoints_steps: 1000000
          intra_op_parallelism_threads: {case["threads"]}
          inter_op_parallelism_threads: {case["threads"]}
        }}
        data_config {{
          batch_size: {case["batch_size"]}
          shuffle_buffer_size: {case["train_rows"]}
          with_header: true
          input_type: CSVInput
          {labels} {inputs}
        }}
        feature_config {{ {features} }}
        model_config {{
          model_class: "{case["network"]}"
          feature_groups {{ group_name: "all" wide_deep: DEEP {group} }}
          {body} {towers} l2_regularization: 0.0 }}
          embedding_regularization: 0.0
        }}
    """


def write_dnn(sizes: list[int]) -> str:
    """Return the configuration of dense layers with ReLU, without batch norm, as text."""
    return f"hidden_units: {sizes} use_bn: false"


class Clock(tf.compat.v1.train.SessionRunHook):
    """Measures the time from the end of the first `warm_up` steps to the end of training."""

    def __init__(self, warm_up: int):
        self._steps_left = warm_up

    def after_run(self, run_context, run_values):
        self._steps_left -= 1
        if not self._steps_left:
            self._started = time.perf_counter()
        self._last = time.perf_counter()

    @property
    def secs(self) -> float:
        """The seconds of all steps after the first `warm_up`."""
        return self._last - self._started


def train(case: dict) -> tuple[float, np.ndarray]:
    """Return the seconds of all epochs but the first, and the probabilities of the test rows."""
    steps = case["train_rows"] // case["batch_size"]
    clock = Clock(steps)
    tf.compat.v1.reset_default_graph()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pipeline.config")
        with open(path, "w") as file:
            file.write(write_config(case, os.path.join(folder, "model")))
        config = config_util.get_configs_from_pipeline_file(path, auto_expand=False)
        estimator, _ = easyrec._create_estimator(config)
        # The configuration of EasyRec has no seed.
        estimator._config = estimator.config.replace(tf_random_seed=case["seed"])
        fields = config_util.get_compatible_feature_configs(config)
        train_input, test_input = (
            easyrec._get_input_fn(config.data_config, fields, path, pipeline_config=config)
            for path in (case["csv"]["train"], case["csv"]["test"])
        )
        estimator.train(train_input, max_steps=steps * case["epochs"], hooks=[clock])
        predictions = list(estimator.predict(test_input))
    names = [f"probs_{task}" for task in case["tasks"]]
    return clock.secs, np.array([[np.squeeze(row[name]) for name in names] for row in predictions])


def main() -> None:
    """Answer all cases of the standard input."""
    answering.answer_cases(train)


if __name__ == "__main__":
    main()
