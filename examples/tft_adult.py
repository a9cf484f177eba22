"""TensorFlow Transform (TFT) before `mtl`: writes UCI Adult as scaled numbers and ids in TFRecords.

    python -m examples.tft_adult transform data/adult tft
    python -m launch.train --gin_file tft.gin --model_dir runs/tft
    python -m examples.tft_adult join tft runs/tft/export/latest served/1

docs/tfx.md has tft.gin and explains each step. `join` writes a SavedModel that takes raw rows.
"""

import csv
import gzip
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

import apache_beam as beam
import tensorflow as tf
import tensorflow_transform as tft
import tensorflow_transform.beam as tft_beam

_FILES = {"train": "data", "test": "test"}
NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week")
TEXTS = ("workclass", "education", "occupation", "race", "sex")
_COLUMNS = [
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week"),
    *("native_country", "income"),
]
RAW_FEATURES = {
    **{name: tf.io.FixedLenFeature([], tf.float32) for name in NUMBERS},
    **{name: tf.io.FixedLenFeature([], tf.string) for name in TEXTS},
}
_RAW_LABELS = {name: tf.io.FixedLenFeature([], tf.string) for name in ("income", "marital_status")}


def preprocessing_fn(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Scale numbers, replace texts by ids and labels by 0 and 1: {field: [B]} -> {field: [B]}."""
    outputs = {name: tft.scale_to_z_score(inputs[name]) for name in NUMBERS}
    for name in TEXTS:
        outputs[name] = tft.compute_and_apply_vocabulary(inputs[name], num_oov_buckets=1)
    outputs["income"] = tf.cast(tf.equal(inputs["income"], ">50K"), tf.int64)
    never_married = tf.equal(inputs["marital_status"], "Never-married")
    outputs["never_married"] = tf.cast(never_married, tf.int64)
    return outputs


def read_rows(path: str, count: int | None = None) -> Iterator[dict]:
    """Yield the rows of a file of UCI Adult, or at most the first `count` rows."""
    with gzip.open(path, "rt") as file:
        rows = (row for row in csv.reader(file, skipinitialspace=True) if len(row) > 1)
        for index, row in enumerate(rows):
            if count is not None and index >= count:
                return
            cells = dict(zip(_COLUMNS, row, strict=True))
            numbers = {name: float(cells[name]) for name in NUMBERS}
            texts = {name: cells[name] for name in (*TEXTS, "marital_status")}
            yield {**numbers, **texts, "income": cells["income"].rstrip(".")}


def transform(data_dir: str, output: str, count: int | None = None) -> None:
    """Write TFRecords of the training and test rows, and TFT's graph, to a folder."""
    raw = tft.DatasetMetadata.from_feature_spec({**RAW_FEATURES, **_RAW_LABELS})
    files = {split: os.path.join(data_dir, f"adult.{name}.gz") for split, name in _FILES.items()}
    with (
        tempfile.TemporaryDirectory() as temp_dir,
        beam.Pipeline() as pipeline,
        tft_beam.Context(temp_dir=temp_dir),
    ):
        rows = {
            split: pipeline | f"create {split}" >> beam.Create(read_rows(path, count))
            for split, path in files.items()
        }
        # Means, deviations and vocabularies come from the training split alone.
        analyze = tft_beam.AnalyzeAndTransformDataset(preprocessing_fn)
        (train, metadata), graph = (rows["train"], raw) | analyze
        test, _ = ((rows["test"], raw), graph) | tft_beam.TransformDataset()
        coder = tft.coders.ExampleProtoCoder(metadata.schema)
        for split, examples in {"train": train, "test": test}.items():
            path = os.path.join(output, split)
            write = beam.io.WriteToTFRecord(path, file_name_suffix=".tfrecord")
            _ = examples | f"encode {split}" >> beam.Map(coder.encode) | f"write {split}" >> write
        _ = graph | tft_beam.WriteTransformFn(output)


class Joined(tf.Module):
    """Runs TFT's graph, then an export: serialized tf.Examples of raw rows -> predictions."""

    def __init__(self, transformed: str, export: str):
        super().__init__()
        self.transform = tft.TFTransformOutput(transformed).transform_features_layer()
        self.model = tf.saved_model.load(export)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def predict(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the predictions of all tasks, {output: [B, ...]}."""
        features = self.transform(tf.io.parse_example(examples, RAW_FEATURES))
        raw = self.model.signatures["raw"]
        names = raw.structured_input_signature[1]
        return raw(**{name: features[name] for name in names})


def join(transformed: str, exports: str, output: str) -> None:
    """Write a SavedModel for raw rows, from TFT's folder and the newest of a folder of exports."""
    newest = max(pathlib.Path(exports).iterdir(), key=lambda path: int(path.name))
    joined = Joined(transformed, str(newest))
    tf.saved_model.save(joined, output, signatures={"serving_default": joined.predict})


if __name__ == "__main__":
    {"transform": transform, "join": join}[sys.argv[1]](*sys.argv[2:])
