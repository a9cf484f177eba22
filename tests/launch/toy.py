"""A small experiment on CSV files: two tasks, seconds to train; tests break it in many ways."""

import random

GIN = """\
from __gin__ import dynamic_registration

from mtl import experiment
from mtl import features
from mtl import heads
from mtl import model
from mtl import spec
from mtl.data import csv
from mtl.data import pipeline
from mtl import checkpoints
from mtl.optimization import optimizers
from mtl.optimization import update

include "gin_configs/defaults.gin"
include "gin_configs/networks/shared_bottom_mlp.gin"

data_dir = "data"
csv.Csv.files = {"train": "train.csv", "test": "test.csv"}
csv.Csv.data_dir = %data_dir
spec.Spec.features = {"age": "float32", "job": "string"}
spec.Spec.labels = {"rich": "int64", "level": "int64"}
experiment.Experiment.data = @pipeline.Pipeline()
pipeline.Pipeline.source = @csv.Csv()
pipeline.Pipeline.spec = @spec.Spec()
pipeline.Pipeline.batch_size = 16

model.MultiTaskModel.columns = [@features.Numeric(), @features.Categorical()]
features.Numeric.names = ["age"]
features.Categorical.names = ["job"]
model.MultiTaskModel.heads = [
    @rich/heads.Binary(),
    @level/heads.MultiClass(),
]
rich/heads.Binary.name = "rich"
level/heads.MultiClass.name = "level"
level/heads.MultiClass.classes = 3

update.Update.optimizer = @optimizers.Adam()
optimizers.Adam.learning_rate = 0.01
experiment.Run.train_steps = 20
experiment.Run.checkpoint_steps = 10
checkpoints.Best.metric = "rich/auc"
checkpoints.Best.higher_is_better = True
"""
HEADER = "age,job,rich,level"
JOBS = ("clerk", "cook", "smith")


def line_of(text: str) -> int:
    """The line of GIN that starts with `text`."""
    return next(i for i, line in enumerate(GIN.splitlines(), 1) if line.startswith(text))


def write(directory, rows: int = 200) -> None:
    """Writes toy.gin and data/{train,test}.csv."""
    (directory / "toy.gin").write_text(GIN)
    (directory / "data").mkdir()
    for split, size in (("train", rows), ("test", 40)):
        (directory / "data" / f"{split}.csv").write_text("\n".join(lines(split, size)) + "\n")


def lines(seed: str, rows: int) -> list[str]:
    """A header and so many examples."""
    draw = random.Random(seed)
    return [HEADER, *(_line(draw) for _ in range(rows))]


def _line(draw: random.Random) -> str:
    age, job = draw.randint(18, 80), draw.randrange(3)
    return f"{age},{JOBS[job]},{int(age > 40)},{job}"
