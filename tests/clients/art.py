"""An outside attack on an exported model: PGD of the Adversarial Robustness Toolbox.

    python -m venv .clients/art
    .clients/art/bin/pip install . adversarial-robustness-toolbox
    .clients/art/bin/python -m tests.clients.art data/digits/test.csv runs/robust/export/latest

It prints the accuracy of the digit of `gin_configs/experiments/digits_few.gin`, plain and under 100
steps from a random start within 0.15 of every pixel, to compare with `launch.evaluate --attacked`.
"""

import csv
import pathlib
import sys

import numpy as np
import tensorflow as tf
from art.attacks.evasion import ProjectedGradientDescent
from art.estimators.classification import TensorFlowV2Classifier


def main(data: str, export: str) -> None:
    """Attack the newest version in the folder of an export on the rows of a CSV file."""
    with open(data) as file:
        rows = list(csv.DictReader(file))
    pixels = np.array([row["pixels"].split("|") for row in rows], np.float32)
    digits = np.array([row["digit"] for row in rows], np.int64)
    version = max(pathlib.Path(export).iterdir(), key=lambda path: path.name)
    served = tf.saved_model.load(str(version)).signatures["raw"]

    def classify(given: tf.Tensor, training: bool = False) -> tf.Tensor:
        del training
        found = served(pixels=tf.cast(given, tf.float32))["digit/probabilities"]
        return tf.math.log(tf.maximum(found, 1e-30))

    classifier = TensorFlowV2Classifier(
        model=classify,
        nb_classes=10,
        input_shape=(64,),
        loss_object=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        clip_values=(0.0, 1.0),
    )
    attack = ProjectedGradientDescent(
        classifier, norm=np.inf, eps=0.15, eps_step=0.01, max_iter=100, num_random_init=1
    )
    moved = attack.generate(pixels, digits)
    assert np.abs(moved - pixels).max() <= 0.15 + 1e-5
    for name, values in (("plain", pixels), ("attacked", moved)):
        predicted = classifier.predict(values).argmax(1)
        print(f"{name}: {100 * np.mean(predicted == digits):.1f}%")


if __name__ == "__main__":
    main(*sys.argv[1:])
