"""Compares the test AUC of three models with the same columns on UCI Adult.

The models are logistic regression and gradient-boosted trees of scikit-learn, with a model for each
task, and the network of `gin_configs/experiments/adult_shared_bottom.gin` for two tasks. The test
AUC of the network comes from the last checkpoint and the official test file.

    python -m benchmarks.adult --adult_dir data/adult --seeds 3
"""

import statistics
import tempfile

import numpy as np
from absl import app, flags
from sklearn import compose, ensemble, linear_model, metrics, pipeline, preprocessing

from mtl import verbs
from mtl.configs import config

_DIR = flags.DEFINE_string("adult_dir", "data/adult", "The folder of the files of UCI Adult.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Runs of the network; the table shows mean and range.")

GIN_FILE = "gin_configs/experiments/adult_shared_bottom.gin"


def load(seed: int):
    """Return the experiment of `GIN_FILE` with a seed."""
    return config.load([GIN_FILE], [f'adult_dir = "{_DIR.value}"', f"experiment.Run.seed = {seed}"])


def table(experiment, split: str) -> tuple[dict, dict]:
    """Return a split as ({field: [N]}, {task: [N] of 0 or 1}), read as the network reads it."""
    dataset = experiment.data.dataset(split, training=False, seed=0, batch_size=1000)
    batches = list(dataset.as_numpy_iterator())
    columns, labels = (
        {
            name: np.concatenate([batch[side][name] for batch in batches])
            for name in batches[0][side]
        }
        for side in (0, 1)
    )
    positives = {head.name: [p.encode() for p in head.positive] for head in experiment.model.heads}
    fields = {head.name: head.field for head in experiment.model.heads}
    return columns, {task: np.isin(labels[fields[task]], positives[task]) for task in fields}


def peers(train: tuple[dict, dict], test: tuple[dict, dict]) -> dict[str, dict[str, float]]:
    """Train scikit-learn's models, and return {model: {task: test AUC}}."""
    is_text = [values.dtype == object for values in train[0].values()]
    text, numbers = np.flatnonzero(is_text), np.flatnonzero(np.logical_not(is_text))
    x_train, x_test = (
        np.column_stack(
            [v.astype(str) if v.dtype == object else v.astype(object) for v in x.values()]
        )
        for x, _ in (train, test)
    )
    one_hot = preprocessing.OneHotEncoder(handle_unknown="ignore")
    scaled = preprocessing.StandardScaler()
    ids = preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    linear = compose.ColumnTransformer([("text", one_hot, text), ("numbers", scaled, numbers)])
    trees = compose.ColumnTransformer([("text", ids, text), ("numbers", "passthrough", numbers)])
    models = {
        "logistic regression": (linear, linear_model.LogisticRegression(max_iter=2000)),
        "gradient-boosted trees": (
            trees,
            ensemble.HistGradientBoostingClassifier(
                categorical_features=range(len(text)), random_state=0
            ),
        ),
    }
    scores = {}
    for name, steps in models.items():
        scores[name] = {}
        for task in train[1]:
            model = pipeline.make_pipeline(*steps).fit(x_train, train[1][task])
            scores[name][task] = metrics.roc_auc_score(
                test[1][task], model.predict_proba(x_test)[:, 1]
            )
    return scores


def main(_) -> None:
    """Train all models, and print the table."""
    experiment = load(seed=1)
    data = experiment.data
    scores = peers(table(experiment, data.train_split), table(experiment, data.eval_split))
    tasks = experiment.model.tasks
    runs = []
    for seed in range(1, _SEEDS.value + 1):
        with tempfile.TemporaryDirectory() as model_dir:
            runs.append(verbs.train(load(seed), model_dir)[0])
    print(f"{'test AUC':<24}" + "".join(f"{task:>16}" for task in tasks))
    for name, by_task in scores.items():
        print(f"{name:<24}" + "".join(f"{by_task[task]:>16.4f}" for task in tasks))
    aucs = {task: [run[f"{task}/auc"] for run in runs] for task in tasks}
    print(
        f"{'mtl, mean of the seeds':<24}"
        + "".join(f"{statistics.mean(aucs[t]):>16.4f}" for t in tasks)
    )
    print(f"{'mtl, least':<24}" + "".join(f"{min(aucs[task]):>16.4f}" for task in tasks))
    print(f"{'mtl, most':<24}" + "".join(f"{max(aucs[task]):>16.4f}" for task in tasks))


if __name__ == "__main__":
    app.run(main)
