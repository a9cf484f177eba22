"""The side of LibMTL in `benchmarks.clients_speed`, which starts it in a Python of its own.

Its `Trainer` trains its MMoE or CGC; its PLE is for ResNets alone. LibMTL has no tables, so that a
subclass of the architecture looks ids up first. Batches are cut from tensors, not collated of rows.
"""

import sys
import time
import types
from collections.abc import Iterator

import answering
import numpy as np
import torch
from torch import nn

# LibMTL imports this for its ResNets, from where torchvision does not have it any more.
moved = types.SimpleNamespace(load_state_dict_from_url=None)
sys.modules.update({"torchvision": moved, "torchvision.models": moved})
sys.modules["torchvision.models.utils"] = moved

import LibMTL  # noqa: E402
from LibMTL import architecture, loss, metrics, weighting  # noqa: E402


class Batches:
    """Shuffled batches of rows, or all in order; the Trainer asks for `next` as PyTorch 1 had."""

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
    """One pass over the batches."""

    def __init__(self, batches):
        self._batches = batches

    def __next__(self):
        return next(self._batches)

    next = __next__


class Loss(loss.AbsLoss):
    """Binary cross-entropy of logits [B, 1]."""

    def compute_loss(self, pred, gt):
        return nn.functional.binary_cross_entropy_with_logits(pred[:, 0], gt)


class Kept(metrics.AbsMetric):
    """Keeps the probabilities of a pass; the last one is that over the test rows."""

    found: np.ndarray

    def __init__(self):
        super().__init__()
        self._logits = []

    def update_fun(self, pred, gt):
        self._logits.append(pred.detach())

    def score_fun(self):
        self.found = torch.sigmoid(torch.cat(self._logits)).numpy()
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
    """LibMTL's, which knows the first GPU alone, on the processor."""

    device = property(lambda self: torch.device("cpu"), lambda self, given: None)


def build_trainer(case: dict) -> tuple[Trainer, dict[str, Kept]]:
    """Return LibMTL's Trainer with the settings of the case, and what keeps its predictions."""
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

    kept = {task: Kept() for task in tasks}
    trainer = Trainer(
        task_dict={
            task: {
                "metrics": ["none"],
                "metrics_fn": kept[task],
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
    return trainer, kept


def train(case: dict) -> tuple[float, np.ndarray]:
    """Return the seconds of all epochs but the first, and the probabilities of the test rows."""
    torch.set_num_threads(case["threads"])
    torch.manual_seed(case["seed"])
    given, labels, test, test_labels = answering.load_arrays(case)
    trainer, kept = build_trainer(case)
    times: list[float] = []
    record = trainer.meter.record_time

    def keep_time(mode: str = "begin") -> None:
        record(mode)
        times.append(time.perf_counter())

    # The Trainer calls it before and after the steps of an epoch, and around each test.
    trainer.meter.record_time = keep_time
    trainer.train(
        Batches(given, labels, case, training=True),
        Batches(test, test_labels, case, training=False),
        case["epochs"],
    )
    epochs = [times[place + 1] - times[place] for place in range(0, len(times), 4)]
    return sum(epochs[1:]), np.concatenate([kept[task].found for task in case["tasks"]], axis=1)


def main() -> None:
    """Answer until the input ends."""
    answering.answer_cases(train)


if __name__ == "__main__":
    main()
