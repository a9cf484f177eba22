"""Whole runs with texts: served as raw strings, in slices, on replicas, resumed, started warm."""

import dataclasses
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, histories, networks, transfer, verbs
from mtl.features import tokenizers
from mtl.optimization import optimizers
from mtl.tf_internals import saved_model
from tests import signatures, tiny

pytestmark = pytest.mark.slow

WORDS = ["red", "reddish", "green", "Greenish", "blue", "bluish", "é", "日本"]


def _texts(num, seed):
    draw = np.random.default_rng(seed)
    sizes = draw.integers(0, 6, num)
    return np.array([" ".join(draw.choice(WORDS, n)).encode() for n in sizes], object)


SPLITS = {
    split: {**rows, "word": _texts(len(rows["x"]), len(rows["x"]))}
    for split, rows in tiny.SPLITS.items()
}


def _make(vocabulary=None, splits=None, word_vectors=None, encoder=None, columns=(), **settings):
    if vocabulary is None:
        pytest.importorskip("tokenizers", reason="needs the extra `text`")
    text = features.Text(
        names=["word"],
        tokenizer=tokenizers.WordPiece(size=40, vocabulary=vocabulary),
        encoder=encoder or histories.Convolution(filters=3, sizes=[1, 2]),
        dimension=4,
        max_tokens=8,
        place_dimension=2,
        word_vectors=word_vectors,
    )
    columns = [features.Numeric(names=["x"]), text, *columns]
    return tiny.make(splits=splits or SPLITS, columns=columns, **settings)


@pytest.fixture
def vectors(tmp_path):
    """A file of vectors of two words."""
    path = tmp_path / "vectors.txt"
    path.write_text("red 1 2 3 4\nblue 5 6 7 8\n")
    return str(path)


def test_raw_strings_are_served_as_they_are_predicted(tmp_path, vectors):
    """The export's own check compares rows of tf.Examples with the Estimator."""
    columns = [
        features.Text(names=["word"], tokenizer=tokenizer, encoder=encoder, prefix=prefix)
        for prefix, tokenizer, encoder in (
            ("bytes", tokenizers.Bytes(), histories.GRU(units=3)),
            ("ngrams", tokenizers.CharacterNgrams(num_buckets=50), histories.Pooling()),
            ("words", tokenizers.Words(), histories.Transformer(dimension=4, num_heads=2)),
        )
    ]
    settings = {"columns": columns, "word_vectors": vectors, "check_rows": 32}
    made = _make(**settings, train_steps=8, checkpoint_steps=8)
    run = str(tmp_path / "run")
    verbs.train(made, run)
    in_process = list(verbs.predict(made, run))
    # A server has neither the run nor the files that the settings name.
    (version,) = (tmp_path / "run" / "export" / "latest").iterdir()
    alone = str(tmp_path / "alone")
    shutil.move(version, alone)
    shutil.move(run, tmp_path / "gone")
    os.remove(vectors)
    proto = saved_model.read(alone)
    functions = (node for f in proto.graph_def.library.function for node in f.node_def)
    ops = {node.op for node in [*proto.graph_def.node, *functions]}
    assert not [op for op in ops if "Py" in op or op in ("ReadFile", "WriteFile")]
    assert str(tmp_path).encode() not in proto.SerializeToString()
    served = signatures.load(alone, "raw")
    given = {name: tf.constant(SPLITS["test"][name]) for name in ("x", "word")}
    for name, values in served(**given).items():
        if name in in_process[0] and values.dtype == tf.float32:
            expected = [row[name] for row in in_process]
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
            assert np.ptp(values) > 0


def test_a_run_that_was_stopped_goes_on_to_the_bit_without_the_file_of_vectors(tmp_path, vectors):
    made = _make(word_vectors=vectors, train_steps=8, checkpoint_steps=4)
    tiny.train(made, tmp_path / "whole")
    os.remove(vectors)
    tiny.assert_same_from(made, tmp_path / "whole", tmp_path / "parts", 4)


def test_slices_and_replicas_train_as_the_whole_batch_does(tmp_path, vectors):
    def make(**run):
        return _make(
            word_vectors=vectors,
            network=networks.SharedBottom(trunk=networks.MLP(layers=[8])),
            optimizer=optimizers.SGD(learning_rate=0.05),
            **run,
        )

    tiny.assert_trains_in_parts(make, tmp_path, 4)


def test_rows_of_a_warm_start_follow_their_tokens_and_a_changed_file_is_refused(tmp_path):
    path, other = tmp_path / "vocab.txt", tmp_path / "other.txt"
    path.write_text("red\n##dish\ngreen\nblue\n")
    other.write_text("blue\n##ish\nred\n[UNK]\ngreen\n")
    settings = {"train_steps": 2, "checkpoint_steps": 2, "encoder": histories.Pooling()}
    made, first = _make(vocabulary=str(path), **settings), str(tmp_path / "first")
    old = tiny.train(made, first)
    warm = transfer.WarmStart(source=first, include=["^features/text_word/"])
    made_other = _make(
        vocabulary=str(other), optimizer=optimizers.SGD(learning_rate=1e-9), **settings
    )
    new = tiny.train(dataclasses.replace(made_other, warm_start=warm), tmp_path / "second")
    name = "features/text_word/embedding"
    old, new = old[name], new[name]
    assert (len(old), len(new)) == (5, 5)  # The former has a place of the unknown.
    np.testing.assert_allclose(new[[0, 2, 4]], old[[3, 0, 2]], atol=1e-6)
    assert np.abs(new[[1, 3]] - old[[1, 4]]).max() > 1e-3
    told = pathlib.Path(tmp_path, "second", "warm_start.txt").read_text()
    assert "3 of 5 rows by name" in told

    path.write_text(path.read_text() + "yellow\n")
    says = "the file of features/text_word must be as when the run in .*first was started"
    for verb in (verbs.train, lambda *given: list(verbs.predict(*given)), verbs.evaluate):
        with pytest.raises(checks.UserError, match=says):
            verb(dataclasses.replace(made, run=dataclasses.replace(made.run, train_steps=4)), first)
    # The vocabulary of another run, under a name that is checked by nobody.
    shorter = _make(vocabulary=str(other), **settings)
    pathlib.Path(first, "given_files.json").unlink()
    other.write_text("blue\n##red\n")
    says = r"of another architecture: 'features/text_word/embedding' has shape \[5, 4\] there and"
    with pytest.raises(checks.UserError, match=says):
        verbs.evaluate(shorter, first)
