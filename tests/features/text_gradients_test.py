"""Gradients of single examples through texts equal those of a pass for each example."""

import pytest
import tensorflow as tf

from mtl import features, histories, layers
from mtl.features import tokenizers
from tests.tools.clip_audit import norms_test

NOTHING = features.Statistics(directory="", entries={})


def _make_batch():
    batch = {name: norms_test.row_batch()[name] for name in ("x", "label")}
    return {**batch, "text": tf.constant(["an apple", "a", "", "pears and apples", "an"])}


@pytest.mark.slow
def test_norms_of_examples_are_those_of_a_pass_for_each():
    column = features.Text(
        names=["text"],
        tokenizer=tokenizers.Bytes(),
        encoder=histories.Convolution(filters=3, sizes=[1, 2]),
        dimension=4,
        max_tokens=5,
        place_dimension=2,
    )

    def network(batch):
        encoded = features.encode_columns([column], {"text": batch["text"]}, NOTHING)["text_text"]
        both = tf.concat([encoded, batch["x"]], axis=1)
        logits = layers.dense(both, norms_test.CLASSES, "a")
        return {"a": norms_test.cross_entropy(logits, batch["label"])}

    fast, slow, unknown = norms_test.measured(network, _make_batch)
    norms_test.assert_same(fast, slow)
    # No rule of one pass covers this table, as docs/text.md says: a new rule changes the page.
    assert "model/features/text_text/embedding" in unknown
