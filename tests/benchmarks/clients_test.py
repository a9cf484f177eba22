"""The comparison with other libraries, as far as it goes without them."""

import gzip

import numpy as np
import pytest
from sklearn import metrics

from benchmarks import clients_speed

LAYOUT = clients_speed.Layout(
    tables={"age": 50, "native_country": 50, "sex": 5},
    tasks=("income", "never_married"),
    width=2,
    expert=(3,),
    tower=(2,),
)


def _parse(*arguments):
    return clients_speed.parse(["--envs", "envs", "--layouts", "taobao", *arguments])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--epochs", "1"], "--epochs"),
        (["--layouts", "adult"], "--data_dir"),
        (["--networks", "DNN"], "--networks"),
    ],
)
def test_bad_flags(arguments, named, capsys):
    with pytest.raises(SystemExit):
        _parse(*arguments)
    assert named in capsys.readouterr().err


def test_a_case_says_all_that_a_side_asks():
    options = _parse("--threads", "1", "--epochs", "3")
    case = clients_speed.build_case(LAYOUT, "PLE", {"train_rows": 8}, options)
    assert (case["network"], case["levels"], case["num_specific"]) == ("PLE", 2, 2)
    assert (case["threads"], case["epochs"], case["train_rows"]) == (1, 3, 8)


def test_people_become_ids_and_labels(tmp_path):
    row = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    rows = [f"{row}Male, 2174, 0, 40, Cuba, {income}" for income in ("<=50K.", ">50K")]
    for name, first in (("adult.data.gz", ""), ("adult.test.gz", "|1x3 Cross validator\n")):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write(first + "\n".join(rows) + "\n\n")
    splits = clients_speed.read_adult(str(tmp_path), LAYOUT)
    ids, labels = splits["test"]
    want = [clients_speed.hash_value(*pair) for pair in (("39", 50), ("Cuba", 50), ("Male", 5))]
    np.testing.assert_array_equal(ids, [want, want])
    np.testing.assert_array_equal(labels, [[0, 1], [1, 1]])
    np.testing.assert_array_equal(splits["train"][0], ids)


def test_both_files_hold_the_same_rows(tmp_path):
    splits = clients_speed.draw_taobao(100, LAYOUT)
    splits = clients_speed.cut_to_batches(splits, 32, 70)
    written = clients_speed.write_rows(splits, LAYOUT, str(tmp_path))
    assert written["train_rows"] == 64
    arrays = np.load(written["arrays"])
    for split, count in (("train", 64), ("test", 25)):
        texts = np.loadtxt(written["csv"][split], np.int32, delimiter=",", skiprows=1)
        np.testing.assert_array_equal(texts[:, :2], arrays[f"{split}_y"])
        np.testing.assert_array_equal(texts[:, 2:], arrays[f"{split}_x"])
        assert len(texts) == count
    assert np.all(arrays["train_x"] < list(LAYOUT.tables.values()))
    with pytest.raises(SystemExit, match="do not fill a batch"):
        clients_speed.cut_to_batches(splits, 32, 20)


def test_drawn_labels_can_be_learned():
    layout = clients_speed.LAYOUTS["taobao"]
    ids, labels = clients_speed.draw_taobao(20_000, layout)["train"]
    column = ids[:, list(layout.tables).index("cms_segid")]
    rates = np.bincount(column, labels[:, 0], 100) / np.maximum(np.bincount(column, None, 100), 1)
    assert metrics.roc_auc_score(labels[:, 0], rates[column]) > 0.55
    assert 0.05 < labels[:, 1].mean() < labels[:, 0].mean() < 0.5


def test_a_side_that_fails_is_not_asked_again(capsys):
    asked = []

    def fail(case):
        asked.append(case["seed"])
        return clients_speed.Result(why="no torch")

    def train(case):
        return clients_speed.Result(speed=10.0, aucs=(0.5,))

    ours = {("arrays", optimizer): train for optimizer in clients_speed.OPTIMIZERS}
    found = clients_speed.take_turns({**ours, "LibMTL": fail}, 3)
    assert asked == [1]
    assert len(found["arrays", "Adam"]) == 3
    told = capsys.readouterr().err.splitlines()
    assert told[:3] == [
        "round 1 of 3, mtl, arrays, Adam: 10 examples/s",
        "round 1 of 3, mtl, arrays, LazyAdam: 10 examples/s",
        "round 1 of 3, LibMTL: no torch",
    ]
    assert len(told) == 7
    (line,) = clients_speed.build_lines("MMoE", found)
    assert line[:4] == ["MMoE", "LibMTL", "tensors, batches cut by index", "no torch"]
    assert len(line) == len(clients_speed.HEADER)


def test_a_line_takes_ratios_within_rounds():
    def results(*speeds):
        return [clients_speed.Result(speed=speed, aucs=(0.9, 0.8)) for speed in speeds]

    found = {
        ("arrays", "Adam"): results(1000, 3000, 2000),
        ("arrays", "LazyAdam"): results(5000, 5000, 5000),
        "DeepCTR": results(500, 1000, 2000),
    }
    (line,) = clients_speed.build_lines("MMoE", found)
    aucs = "0.9000 / 0.8000"
    assert line[3:] == [
        *("1,000", aucs),
        *("2,000", "2.00 (1.00 to 3.00)", aucs),
        *("5,000", "5.00 (2.50 to 10.00)", aucs),
    ]


def test_a_side_is_scored_by_what_it_predicts(tmp_path):
    labels = np.array([[0, 1], [1, 0], [1, 1]])

    def train(case):
        np.save(case["predictions"], [[0.1, 0.2], [0.2, 0.3], [0.3, 0.1]])
        return {"secs": 2.0}

    case = {"train_rows": 100, "epochs": 5}
    result = clients_speed.train_side(train, case, labels, str(tmp_path))
    assert result == clients_speed.Result(speed=200.0, aucs=(1.0, 0.0))
    failed = clients_speed.train_side(lambda case: {"why": "it broke"}, case, labels, str(tmp_path))
    assert failed.why == "it broke"
