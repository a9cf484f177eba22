"""Trains LibMTL's models for `benchmarks.clients_speed`, which starts it in another Python.

LibMTL's `Trainer` trains MMoE or CGC, because LibMTL's PLE only supports ResNets. LibMTL has no
embedding tables, so a subclass of the architecture looks ids up first. Batches are slices of
tensors, which is faster than a DataLoader that collates single rows.
"""

import sys
import time
import types
from collections.abc import Iterator

import answering
import numpy as np
import torch
from torch import nn

# For its ResNets, LibMTL imports a module of torchvision that newer versions lack. The cases need
# no ResNets, so an empty module takes its place.
stub = types.SimpleNamespace(load_state_dict_from_url=None)
sys.modules.update({"torchvision": stub, "torchvision.models": stub})
sys.modules["torchvision.models.utils"] = stub

import LibMTL  # noqa: E402
from LibMTL import architecture, loss, metrics, weighting  # noqa: E402


class Batches:
    """Batches of rows, which are shuffled in training.

    Iterators have a method `next`, as in PyTorch 1, because the Trainer calls this method.
    """

    def __init__(self, ids: np.ndarray, labels: np.ndarray, case: dict, training: bool):
        self._ids = torch.from_numpy(ids.astype(np.int64))
        self._labels = torch.from_numpy(labels.astype(np.float32))
        self._tasks, self._training = case["tasks"], training
        self._size = case["batch_size"] if training else 4096

    def __len__(self) -> int:
        return -(-len(self._ids) // self._size)

    def __iter__(self) -> "Pass":
        return Pass(self._read())

    def _read(self):
        count = len(self._ids)
        order = torch.randperm(count) if self._training else torch.arange(count)
        for rows in order.split(self._size):
            labels = self._labels[rows]
            yield self._ids[rows], {task: labels[:, i] for i, task in enumerate(self._tasks)}


class Pass(Iterator):
    """A single pass over the batches."""

    def __init__(self, batches):
        self._batches = batches

    def __next__(self):
        return next(self._batches)

    next = __next__


class Loss(loss.AbsLoss):
    """Binary cross-entropy of logits [B, 1]."""

    def compute_loss(self, pred, gt):
        return nn.functional.binary_cross_entropy_with_logits(pred[:, 0], gt)


class Probabilities(metrics.AbsMetric):
    """Stores the probabilities of each pass; the last pass of a training reads the test rows."""

    values: np.ndarray

    def __init__(self):
        super().__init__()
        self._logits = []

    def update_fun(self, pred, gt):
        self._logits.append(pred.detach())

    def score_fun(self):
        self.values = torch.sigmoid(torch.cat(self._logits)).numpy()
        return [0.0]

    def reinit(self):
        super().reinit()
        self._logits = []


def mlp(inputs: int, sizes: list[int]) -> list[nn.Module]:
    """Return dense layers with ReLU."""
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return layers


class Trainer(LibMTL.Trainer):
    """LibMTL's Trainer on the processor; without this class it only uses the first GPU."""

    device = property(lambda self: torch.device("cpu"), lambda self, device: None)


def build_trainer(case: dict) -> tuple[Trainer, dict[str, Probabilities]]:
    """Return LibMTL's Trainer with the settings of the case, and {task: probabilities}."""
    tasks, inputs = case["tasks"], case["width"] * len(case["tables"])
    if case["network"] == "MMoE":
        kind, counts = architecture.MMoE, [case["num_experts"]]
    else:
        kind = architecture.CGC
        counts = [case["num_shared"], *[case["num_specific"]] * len(tasks)]

    class Embedded(kind):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tables = nn.ModuleList(
                nn.Embedding(rows, case["width"]) for rows in case["tables"].values()
            )
            stddev = case["initial_stddev"]
            for table in self.tables:
                nn.init.trunc_normal_(table.weight, 0.0, stddev, -2 * stddev, 2 * stddev)

        def forward(self, inputs, task_name=None):
            looked_up = [table(inputs[:, i]) for i, table in enumerate(self.tables)]
            return super().forward(torch.cat(looked_up, dim=1), task_name)

    probabilities = {task: Probabilities() for task in tasks}
    trainer = Trainer(
        task_dict={
            task: {
                "metrics": ["none"],
                "metrics_fn": probabilities[task],
                "loss_fn": Loss(),
                "weight": [1],
            }
            for task in tasks
        },
        weighting=weighting.EW,
        architecture=Embedded,
        encoder_class=lambda: nn.Sequential(*mlp(inputs, case["expert"])),
        decoders=nn.ModuleDict(
            {
                task: nn.Sequential(
                    *mlp(case["expert"][-1], case["tower"]), nn.Linear(case["tower"][-1], 1)
                )
                for task in tasks
            }
        ),
        rep_grad=False,
        multi_input=False,
        optim_param={"optim": "adam", "lr": case["rate"]},
        scheduler_param=None,
        arch_args={"img_size": [inputs], "num_experts": counts},
        weight_args={},
    )
    return trainer, probabilities


def train(case: dict) -> tuple[float, np.ndarray]:
    """Return the seconds of all epochs but the first, and the probabilities of the test rows."""
    torch.set_num_threads(case["threads"])
    torch.manual_seed(case["seed"])
    ids, labels, test_ids, test_labels = answering.load_arrays(case)
    trainer, probabilities = build_trainer(case)
    times: list[float] = []
    record = trainer.meter.record_time

    def keep_time(mode: str = "begin") -> None:
        record(mode)
        times.append(time.perf_counter())

    # The Trainer calls `record_time` before and after the steps of an epoch, and around each test.
    trainer.meter.record_time = keep_time
    trainer.train(
        Batches(ids, labels, case, training=True),
        Batches(test_ids, test_labels, case, training=False),
        case["epochs"],
    )
    epochs = [times[place + 1] - times[place] for place in range(0, len(times), 4)]
    columns = [probabilities[task].values for task in case["tasks"]]
    return sum(epochs[1:]), np.concatenate(columns, axis=1)


def main() -> None:
    """Answer all cases of the standard input."""
    answering.answer_cases(train)


if __name__ == "__main__":
    main()
