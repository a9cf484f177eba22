"""Files of SVMlight: the numbers that scikit-learn reads, and each mistake with file and line."""

import gzip

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, heads, spec, verbs
from mtl import features as columns
from mtl.data import pipeline, svm_light, whole_groups
from tests import tiny

SPEC = spec.Spec(
    features={"features": ("float32", (5,))}, labels={"label": "int64", "qid": "int64"}
)
_TEXT = """# a remark
2 qid:10 1:0.5 3:1.25 # document 7
0 qid:10 5:-3e-2

1 qid:11   2:1 \t 4:.5
3 qid:12
"""
_EXPECTED = [[0.5, 0, 1.25, 0, 0], [0, 0, 0, 0, -0.03], [0, 1, 0, 0.5, 0], [0] * 5]


def _write(path, text=_TEXT):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return svm_light.SvmLight(files={"a": str(path)})


def _read(source, made=SPEC):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(source.records("a").batch(999)).get_next()
        return session.run(source.decode(batch, made, True))


LISTS = spec.Spec(
    features={"features": ("int64", (None,)), "features/weights": ("float32", (None,))},
    labels={"label": "int64", "qid": "int64"},
)


@pytest.mark.parametrize("cache", [False, True])
def test_indexes_are_ids_with_the_numbers_as_weights(tmp_path, cache):
    source = _write(tmp_path / "a.svm", f"{_TEXT}1 qid:12 9223372036854775807:1e-3\n")
    data = pipeline.Pipeline(
        source=source, spec=LISTS, batch_size=5, train_split="a", cache=cache, shuffle_buffer=1
    )
    (values, labels), *_ = data.dataset("a", training=cache, seed=0).take(1).as_numpy_iterator()
    ids, weights = (values[name].tolist() for name in LISTS.features)
    assert [own.tolist() for own in ids] == [[1, 3], [5], [2, 4], [], [2**63 - 1]]
    expected = [[0.5, 1.25], [-0.03], [1, 0.5], [], [1e-3]]
    assert [own.tolist() for own in weights] == [np.float32(own).tolist() for own in expected]
    assert labels["qid"].tolist() == [10, 10, 11, 12, 12]
    for (_, row), own, factors in zip(source.scan("a", LISTS), ids, weights, strict=True):
        assert row["features"] == own.tolist() and row["features/weights"] == factors.tolist()


def test_a_list_has_one_largest_index(tmp_path):
    source = _write(tmp_path / "a.svm", f"1 qid:3 {2**63}:1\n")
    ((_, problem),) = source.scan("a", LISTS)
    assert problem == f"must hold indexes from 1 to {2**63 - 1}, got {2**63}."


@pytest.mark.parametrize("name", ["a.svm", "a.txt.gz"])
def test_rows_are_dense_vectors_with_label_and_group(tmp_path, name):
    source = _write(tmp_path / name)
    values = _read(source)
    np.testing.assert_array_equal(values["features"], np.array(_EXPECTED, np.float32))
    assert values["label"].tolist() == [2, 0, 1, 3] and values["qid"].tolist() == [10, 10, 11, 12]
    scanned = list(source.scan("a", SPEC))
    assert [where.rpartition(" ")[2] for where, _ in scanned] == ["2", "3", "5", "6"]
    np.testing.assert_array_equal(
        np.float32([row["features"] for _, row in scanned]), values["features"]
    )
    assert [row["qid"] for _, row in scanned] == [10, 10, 11, 12]


def test_rows_are_those_of_scikit_learn(tmp_path):
    datasets = pytest.importorskip("sklearn.datasets")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 5)) * (rng.random((200, 5)) < 0.4)
    y, query = rng.integers(0, 5, 200), np.sort(rng.integers(0, 20, 200))
    for first in (0, 1):
        path = str(tmp_path / f"{first}.svm")
        datasets.dump_svmlight_file(x, y, path, zero_based=first == 0, query_id=query)
        theirs, labels, queries = datasets.load_svmlight_file(
            path, n_features=5, zero_based=first == 0, query_id=True
        )
        values = _read(svm_light.SvmLight(files={"a": path}, first_index=first))
        np.testing.assert_array_equal(values["features"], theirs.toarray().astype(np.float32))
        np.testing.assert_array_equal(values["label"], labels)
        np.testing.assert_array_equal(values["qid"], queries)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 qid:3 6:1", "must hold indexes from 1 to 5, got 6."),
        ("1 qid:3 0:1", "must hold indexes from 1 to 5, got 0."),
        ("1 qid:3 2:1 2:4", "must hold indexes that increase, got 2 behind 2."),
        ("1 qid:3 3:1 2:4", "must hold indexes that increase, got 2 behind 3."),
        ("1 qid:3 1:x", "must hold pairs such as 3:0.5, got '1:x'."),
        ("1 qid:3 1:nan", "must hold pairs such as 3:0.5, got '1:nan'."),
        ("1 qid:3 1:0x1F", "must hold pairs such as 3:0.5, got '1:0x1F'."),
        ("1 qid:3 1", "must hold pairs such as 3:0.5, got '1'."),
        ("1 qid:3 1:1e39", "must hold numbers of float32, got a larger one."),
        ("1 qid:3 99999999999999999999:1", "got 99999999999999999999."),
        ("x qid:3 1:1", "field 'label' must be int64, got 'x'."),
        ("1 qid:z 1:1", "field 'qid' must be int64, got 'z'."),
    ],
)
def test_a_wrong_line_is_named_and_refused(tmp_path, line, problem):
    source = _write(tmp_path / "a.svm", f"1 qid:3 1:1\n\n{line}\n")
    where, values = list(source.scan("a", SPEC))[-1]
    assert where == f"{tmp_path}/a.svm line 3"
    assert isinstance(values, str) and values.endswith(problem)
    with pytest.raises(tf.errors.InvalidArgumentError):
        _read(source)


def test_a_line_without_a_group_is_a_gap(tmp_path):
    source = _write(tmp_path / "a.svm", "1 1:1\n")
    made = spec.Spec(features=SPEC.features, labels={"label": "float32"})
    assert _read(source, made)["label"].tolist() == [1.0]
    assert _read(source)["qid"].tolist() == [spec.MISSING["int64"]]


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ({"features": {"x": "float32"}}, "a field of SvmLight must be one of features, label, qid"),
        ({"features": {"features": "float32"}}, "must be a float32 of a shape .D,"),
        ({"features": {"features": ("float32", (None,))}}, "must be a float32 of a shape .D,"),
        ({"features": {"label": ("float32", (2,))}}, "field 'label' must hold one value"),
        (
            {"features": {"features": ("string", (None,))}},
            "or an int64 of shape .None,. for a list",
        ),
    ],
)
def test_a_spec_that_lines_cannot_fill_is_refused(tmp_path, made, line):
    source = _write(tmp_path / "a.svm")
    with pytest.raises(checks.UserError, match=line):
        _read(source, spec.Spec(**{"labels": {}, **made}))


@pytest.mark.slow
def test_a_ranker_trains_from_files_of_svm_rank(tmp_path):
    import dataclasses

    rng = np.random.default_rng(2)
    lines = []
    for query in range(40):
        for _ in range(rng.integers(3, 7)):
            x = rng.normal(size=5)
            pairs = " ".join(f"{index}:{value:.4f}" for index, value in enumerate(x, 1))
            lines.append(f"{int(x[0] > 0) + int(x[1] > 0)} qid:{query} {pairs}")
    (tmp_path / "a.svm").write_text("\n".join(lines) + "\n")
    path = str(tmp_path / "a.svm")
    made = tiny.make(columns=[columns.Numeric(names=["features"])], train_steps=60)
    data = pipeline.Pipeline(
        source=svm_light.SvmLight(files={"train": path, "test": path}),
        spec=SPEC, batch_size=32, sampler=whole_groups.WholeGroups(group="qid"),
    )  # fmt: skip
    model = dataclasses.replace(
        made.model, heads=[heads.Ranking(name="rank", label="label", group="qid")]
    )
    made = dataclasses.replace(made, data=data, model=model)
    verbs.train(made, str(tmp_path / "run"))
    metrics = verbs.evaluate(made, str(tmp_path / "run"), "test", "latest")
    assert metrics["rank/ndcg"] > 0.85
