"""TFX 1.21 beside this project: TensorFlow Model Analysis evaluates an export as we do.

    python -m tests.clients.tfx --data_dir data/adult

It builds an environment with this project, TensorFlow Model Analysis (TFMA) and TensorFlow
Transform, if there is none. There it trains two tasks on UCI Adult for a few steps, exports them,
and has TFMA evaluate the export on the test split, whole and by slices of two categories. Counts,
accuracies and means of labels and predictions have to equal those of `launch.evaluate`. Both areas
under the curve have to equal an area by ranks, up to the error of their thresholds.

Then it follows docs/tfx.md with 2,000 rows of each split: TensorFlow Transform (TFT) writes
TFRecords, a run trains on them, and TFT's graph joins the export. On raw rows, the joined model has
to predict as the export does on the rows that TFT wrote.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np

from tests import pages
from tests.clients import environments

PACKAGES = ("tensorflow-model-analysis==0.52.*", "tensorflow-transform==1.21.*", "google-crc32c")
FILES = ("adult.data.gz", "adult.test.gz")
TASKS = ("income", "never_married")
SLICES = {
    "sex": ["Female", "Male"],
    "workclass": ["?", "Federal-gov", "Local-gov", "Private", "Self-emp-inc", "State-gov"],
}
# Ours -> the metric of TFMA.
_METRICS = {
    "accuracy": "binary_accuracy",
    "auc": "auc",
    "label_mean": "mean_label",
    "prediction_mean": "mean_prediction",
}
_TOLERANCE = 1e-6
# The distance of TFMA's thresholds: it cannot rank predictions between two of them.
_RESOLUTION = 1e-4
_COUNT = "example_count"
_TFT_ROWS = 2000
_GIN = """
from __gin__ import dynamic_registration
from mtl import experiment
from mtl import model
include "gin_configs/experiments/adult_shared_bottom.gin"
adult_dir = "{data}"
experiment.Run.train_steps = 200
experiment.Run.checkpoint_steps = 200
model.MultiTaskModel.slices = {slices}
"""


def launch(python: str, folder: pathlib.Path, *arguments: str) -> None:
    """Run `python -m ARGUMENTS` in a folder, and end with its errors if it fails."""
    command = [python, "-m", *arguments]
    environ = environments.environ()
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def train(python: str, folder: pathlib.Path, data: pathlib.Path) -> dict[str, float]:
    """Train, export and evaluate in a folder, and return our metrics of the test split."""
    (folder / "adult.gin").write_text(_GIN.format(data=data, slices=SLICES))
    launch(python, folder, "launch.train", "--gin_file", "adult.gin", "--model_dir", "run")
    launch(python, folder, "launch.evaluate", "--model_dir", "run", "--split", "test")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])


def analyze(folder: pathlib.Path) -> None:
    """Write the test split as tf.Examples with 0 or 1 as labels, and TFMA's metrics of it."""
    import tensorflow as tf

    from mtl.configs import config, trust

    data = config.load([str(folder / "run" / "config.gin")], (), trust.Trusted(None, ())).data
    positives = {"income": ">50K", "never_married": "Never-married"}
    fields = {"income": "income", "never_married": "marital-status"}
    columns: dict[str, list] = {name: [] for name in (*TASKS, *SLICES)}
    examples, labelled = [], []
    for _, row in data.source.scan("test", data.spec):
        features = {name: row[name] for name in data.spec.features}
        example = tf.train.Example.FromString(data.spec.serialize(features))
        examples.append(example.SerializeToString())
        for task, field in fields.items():
            columns[task].append(int(row[field].rstrip(".") == positives[task]))
            example.features.feature[f"is_{task}"].int64_list.value.append(columns[task][-1])
        for name in SLICES:
            columns[name].append(row[name])
        labelled.append(example.SerializeToString())
    with tf.io.TFRecordWriter(str(folder / "test.tfrecord")) as writer:
        for text in labelled:
            writer.write(text)
    (export,) = (folder / "run" / "export" / "latest").iterdir()
    answers = tf.saved_model.load(str(export)).signatures["serving_default"](
        examples=tf.constant(examples)
    )
    scores = {task: answers[f"{task}/probability"].numpy().tolist() for task in TASKS}
    made = {"metrics": _run(str(export), str(folder)), "columns": columns, "scores": scores}
    (folder / "tfma.json").write_text(json.dumps(made))


def _run(export: str, folder: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return {task: {slice: {metric of TFMA: value}}}; the slice of all rows is ""."""
    import tensorflow_model_analysis as tfma

    # TFMA 0.52 has no `tfma.EvalConfig`, whatever its pages say.
    from tensorflow_model_analysis.proto import config_pb2

    names = ("AUC", "BinaryAccuracy", "MeanLabel", "MeanPrediction", "ExampleCount")
    settings = config_pb2.EvalConfig(
        model_specs=[
            config_pb2.ModelSpec(
                name=task,
                signature_name=task,
                model_type=tfma.TF_GENERIC,
                label_key=f"is_{task}",
                prediction_key="probability",
            )
            for task in TASKS
        ],
        slicing_specs=[
            config_pb2.SlicingSpec(),
            *(config_pb2.SlicingSpec(feature_keys=[field]) for field in SLICES),
        ],
        metrics_specs=[
            config_pb2.MetricsSpec(
                model_names=list(TASKS),
                metrics=[config_pb2.MetricConfig(class_name=name) for name in names],
            )
        ],
    )
    models = [
        tfma.default_eval_shared_model(
            eval_saved_model_path=export, model_name=task, eval_config=settings, tags=["serve"]
        )
        for task in TASKS
    ]
    tfma.run_model_analysis(
        eval_shared_model=models,
        eval_config=settings,
        data_location=f"{folder}/test.tfrecord",
        file_format="tfrecords",
        output_path=f"{folder}/tfma",
    )
    results = {task: tfma.load_eval_result(f"{folder}/tfma", model_name=task) for task in TASKS}
    return {
        task: {
            ",".join(f"{field}={value}" for field, value in key): {
                metric: value["doubleValue"] for metric, value in metrics[""][""].items()
            }
            for key, metrics in result.slicing_metrics
        }
        for task, result in results.items()
    }


def transform(folder: pathlib.Path, data: str) -> None:
    """Have TFT write a part of the rows."""
    from examples import tft_adult

    tft_adult.transform(data, str(folder / "tft"), _TFT_ROWS)


def compare_joined(folder: pathlib.Path, data: str) -> None:
    """Join TFT's graph and the export, and fail unless raw rows get the predictions of the export.

    Beam may change the order of rows, so that both sides are sorted.
    """
    import tensorflow as tf

    from examples import tft_adult

    exports = folder / "tft_run" / "export" / "latest"
    tft_adult.join(str(folder / "tft"), str(exports), str(folder / "joined"))
    joined = tf.saved_model.load(str(folder / "joined")).signatures["serving_default"]
    (export,) = exports.iterdir()
    model = tf.saved_model.load(str(export)).signatures["serving_default"]
    paths = tf.io.gfile.glob(f"{folder}/tft/test-*.tfrecord")
    written = [record.numpy() for record in tf.data.TFRecordDataset(paths)]
    raw = []
    for row in tft_adult.read_rows(f"{data}/adult.test.gz", _TFT_ROWS):
        example = tf.train.Example()
        for name in tft_adult.NUMBERS:
            example.features.feature[name].float_list.value.append(row[name])
        for name in tft_adult.TEXTS:
            example.features.feature[name].bytes_list.value.append(row[name].encode())
        raw.append(example.SerializeToString())
    assert len(raw) == len(written) == _TFT_ROWS, (len(raw), len(written))
    answers = joined(examples=tf.constant(raw))
    expected = model(examples=tf.constant(written))
    assert sorted(answers) == sorted(expected), sorted(answers)
    for task in TASKS:
        name = f"{task}/probability"
        values = np.sort(expected[name])
        assert values[-1] - values[0] > 0.2, values  # The model has learned to tell rows apart.
        np.testing.assert_allclose(np.sort(answers[name]), values, rtol=1e-5, atol=1e-6)


def try_transform(python: str, folder: pathlib.Path, data: pathlib.Path) -> None:
    """Follow docs/tfx.md: TFT, a run on its rows, and a model that takes raw rows."""
    (folder / "tft.gin").write_text(pages.read_block("tfx.md", "gin"))
    this = ("tests.clients.tfx", "--data_dir", str(data))
    launch(python, folder, *this, "--transform", str(folder))
    steps = ("--gin_param", "Run.train_steps = 200")
    launch(python, folder, "launch.train", "--gin_file=tft.gin", *steps, "--model_dir=tft_run")
    launch(python, folder, *this, "--join", str(folder))


def compare(ours: dict[str, float], made: dict) -> dict[str, float]:
    """Fail unless the metrics of all slices agree, and return the largest difference of each."""
    columns = {name: np.array(values) for name, values in made["columns"].items()}
    slices = {"": np.ones(len(columns[TASKS[0]]), bool)}
    slices |= {f"{name}={v}": columns[name] == v for name, values in SLICES.items() for v in values}
    furthest = dict.fromkeys(_METRICS, 0.0)
    for task in TASKS:
        for name, rows in slices.items():
            theirs = made["metrics"][task][name]
            assert theirs[_COUNT] == rows.sum() > 0, (task, name)
            labels, scores = columns[task][rows], np.array(made["scores"][task])[rows]
            for metric, other in _METRICS.items():
                where = f"{task}/{metric}@{name}".rstrip("@")
                pair = ours[where], theirs[other]
                if metric == "auc":
                    _check_areas(where, *pair, labels, scores)
                else:
                    assert abs(pair[0] - pair[1]) <= _TOLERANCE, (where, *pair)
                furthest[metric] = max(furthest[metric], abs(pair[0] - pair[1]))
    return furthest


def _check_areas(
    where: str, ours: float, theirs: float, labels: np.ndarray, scores: np.ndarray
) -> None:
    """Fail unless both areas are the share of pairs that the scores rank right."""
    positives, negatives = scores[labels == 1], np.sort(scores[labels == 0])
    pairs = len(positives) * len(negatives)

    def count_lower(distance: float, side: str) -> int:
        return int(np.searchsorted(negatives, positives + distance, side).sum())

    exact = (count_lower(0, "left") + count_lower(0, "right")) / 2 / pairs
    for area, resolution in ((ours, _TOLERANCE), (theirs, _RESOLUTION)):
        close = count_lower(resolution, "right") - count_lower(-resolution, "left")
        assert abs(area - exact) <= close / 2 / pairs + _TOLERANCE, (where, area, exact)


def _run_there(options: argparse.Namespace) -> None:
    """Do what needs the packages of the environment."""
    if options.analyze:
        analyze(pathlib.Path(options.analyze))
    elif options.transform:
        transform(pathlib.Path(options.transform), options.data_dir)
    else:
        compare_joined(pathlib.Path(options.join), options.data_dir)


def main() -> None:
    """Build the environment, train and evaluate there, and print the largest differences."""
    parser = environments.make_parser(__doc__, "tfx")
    parser.add_argument("--data_dir", help="the folder of UCI Adult")
    parser.add_argument("--analyze", help=argparse.SUPPRESS)
    for hidden in ("--transform", "--join"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.analyze or options.transform or options.join:
        _run_there(options)
        return
    with environments.skipping():
        data = environments.require_data(options.data_dir, FILES, "--data_dir")
        python = environments.build(options.env, packages=PACKAGES)
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        ours = train(python, folder, data)
        launch(python, folder, "tests.clients.tfx", "--analyze", path)
        made = json.loads((folder / "tfma.json").read_text())
        furthest = compare(ours, made)
        try_transform(python, folder, data)
    print(f"TFMA evaluates {len(made['columns']['sex'])} rows, whole and by slice, as we do:")
    for metric, difference in furthest.items():
        print(f"  {metric:<16} at most {difference:.1g} apart")
    print(f"TFT before a run: raw rows get the predictions of its export, {_TFT_ROWS} rows")


if __name__ == "__main__":
    main()
