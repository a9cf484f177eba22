"""Networks for images on real ones: from a gin file through training to a served prediction."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import verbs
from mtl.compat import keras
from mtl.configs import config
from tests import signatures

PARAMS = ("Run.train_steps = 120", "Run.checkpoint_steps = 120", "Cosine.decay_steps = 120")


def _examples(images):
    """[B, H, W, C] -> [B] serialized."""
    lists = (tf.train.Int64List(value=image.ravel()) for image in images.astype(np.int64))
    features = ({"image": tf.train.Feature(int64_list=values)} for values in lists)
    return [
        tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
        for feature in features
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_resnet", "digits_keras"])
def test_trains_on_digits_and_serves_what_it_predicts(name, tmp_path):
    if name == "digits_keras" and not keras.in_use().startswith("2."):
        pytest.skip("needs tf-keras")
    made = config.load([f"gin_configs/experiments/{name}.gin"], PARAMS)
    metrics, steps = verbs.train(made, str(tmp_path))
    assert steps == 120 and metrics["digit/accuracy"] > 0.7 and metrics["parity/auc"] > 0.9
    again = verbs.evaluate(made, str(tmp_path), checkpoint="best")
    assert again["digit/accuracy"] >= metrics["digit/accuracy"]

    batches = made.data.dataset("test", training=False, seed=0).as_numpy_iterator()
    images = np.concatenate([features["image"] for features, _ in batches])
    predicted = list(verbs.predict(made, str(tmp_path), checkpoint="best"))
    export = max((tmp_path / "export" / "best").iterdir())
    serve = signatures.load(export)
    served = serve(examples=tf.constant(_examples(images)))
    assert len(predicted) == len(images) > 300
    for output in ("digit/probabilities", "loops/value", "parity/probability"):
        expected = np.array([row[output] for row in predicted])
        np.testing.assert_allclose(served[output], expected, rtol=1e-4, atol=1e-5)
