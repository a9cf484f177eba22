"""Times LibMTL and torchjd for `benchmarks.balancing_speed`, which starts it in another Python.

Each line of the standard input is a case in JSON, `{"peer", "network", "tasks", "method", "way",
"steps"}`. The answer to a case is a line of the standard output: `{"secs": seconds of a step}`, or
`{"why": reason}` if the peer lacks the method or fails.
"""

import functools
import json
import sys
import time
import types

import torch
from torch import nn
from torchjd import aggregation, autogram, autojac

# For its ResNets, LibMTL imports a function that torchvision no longer has in this module.
stub = types.SimpleNamespace(load_state_dict_from_url=None)
sys.modules.update({"torchvision": stub, "torchvision.models": stub})
sys.modules["torchvision.models.utils"] = stub

from LibMTL import architecture, weighting  # noqa: E402

LIBMTL = {
    "MGDA": (weighting.MGDA, {"mgda_gn": "none"}),
    "PCGrad": (weighting.PCGrad, {}),
    "CAGrad": (weighting.CAGrad, {"calpha": 0.4, "rescale": 0}),
    "IMTLG": (weighting.IMTL, {}),
    "GradVac": (weighting.GradVac, {"beta": 0.01}),
}
TORCHJD = {
    "MGDA": lambda tasks: aggregation.MGDA(),
    "PCGrad": lambda tasks: aggregation.PCGrad(),
    "CAGrad": lambda tasks: aggregation.CAGrad(c=0.4),
    "UPGrad": lambda tasks: aggregation.UPGrad(),
    "DualProj": lambda tasks: aggregation.DualProj(),
    "NashMTL": lambda tasks: aggregation.NashMTL(n_tasks=tasks),
    "FairGrad": lambda tasks: aggregation.FairGrad(alpha=2.0),
    "IMTLG": lambda tasks: aggregation.IMTLG(),
    "ConFIG": lambda tasks: aggregation.ConFIG(),
    "AlignedMTL": lambda tasks: aggregation.AlignedMTL(),
    "Krum": lambda tasks: aggregation.Krum(n_byzantine=0, n_selected=1),
    "Random": lambda tasks: aggregation.Random(),
    "GradDrop": lambda tasks: aggregation.GradDrop(),
}

# The same methods for torchjd's engine that computes inner products instead of gradients.
AUTOGRAM = {
    "MGDA": aggregation.MGDAWeighting,
    "PCGrad": aggregation.PCGradWeighting,
    "CAGrad": functools.partial(aggregation.CAGradWeighting, c=0.4),
    "UPGrad": aggregation.UPGradWeighting,
    "DualProj": aggregation.DualProjWeighting,
    "IMTLG": aggregation.IMTLGWeighting,
    "AlignedMTL": aggregation.AlignedMTLWeighting,
}


def trunk(network: str) -> nn.Module:
    """Return the trunk, with the layers that `benchmarks.balancing_speed` builds for `mtl`."""
    if network != "convnet":
        sizes = [128] + [512] * 6
        layers = [
            layer
            for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True)
            for layer in (nn.Linear(inputs, outputs), nn.ReLU())
        ]
        return nn.Sequential(*layers)
    blocks = [
        layer
        for inputs, outputs in ((3, 32), (32, 64), (64, 128))
        for layer in (nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU())


class Steps:
    """Training steps of one case."""

    def __init__(self, peer: str, network: str, tasks: int, method: str, way: str):
        torch.manual_seed(0)
        shape = {"mlp": (256, 128), "mlp_64": (64, 128), "convnet": (64, 3, 32, 32)}[network]
        width = {"mlp": 512, "mlp_64": 512, "convnet": 256}[network]
        self.tasks, self.inputs = tasks, torch.randn(*shape)
        self.labels = torch.randint(0, 2, (tasks, shape[0])).float()
        self.trunk = trunk(network)
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(tasks))
        if peer == "LibMTL":
            self.step = self._libmtl(method, way)
            parameters = self.model.parameters()
        else:
            parameters = [*self.trunk.parameters(), *self.heads.parameters()]
            if method == "Sum":
                self.step = self._sum
            elif way == "autogram":
                self.weighting = AUTOGRAM[method]()
                self.engine = autogram.Engine(self.trunk, batch_dim=None)
                self.step = self._by_products
            else:
                self.aggregator = TORCHJD[method](tasks)
                self.step = {"exact": self._exact, "representation": self._represented}[way]
        self.optimizer = torch.optim.Adam(parameters)

    def _losses(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        logits = [head(hidden)[:, 0] for head in self.heads]
        return [self._loss(*pair) for pair in zip(logits, self.labels, strict=True)]

    _loss = staticmethod(nn.functional.binary_cross_entropy_with_logits)

    def _sum(self) -> None:
        sum(self._losses(self.trunk(self.inputs))).backward()

    def _exact(self) -> None:
        hidden = self.trunk(self.inputs)
        autojac.mtl_backward(self._losses(hidden), features=hidden)
        autojac.jac_to_grad(self.trunk.parameters(), self.aggregator)

    def _by_products(self) -> None:
        losses = torch.stack(self._losses(self.trunk(self.inputs)))
        losses.backward(self.weighting(self.engine.compute_gramian(losses)))

    def _represented(self) -> None:
        hidden = self.trunk(self.inputs)
        leaf = hidden.detach().requires_grad_()
        tasks = [list(head.parameters()) for head in self.heads]
        losses = self._losses(leaf)
        autojac.mtl_backward(losses, features=leaf, tasks_params=tasks, shared_params=[leaf])
        autojac.jac_to_grad([leaf], self.aggregator)
        hidden.backward(leaf.grad)

    def _libmtl(self, method: str, way: str):
        """Build the step as LibMTL's Trainer does.

        The encoder returns a list, so that LibMTL does not repeat the pass of the trunk.
        """
        kind, settings = LIBMTL[method]
        on_representation, encoder = way == "representation", self.trunk

        class Model(architecture.HPS, kind):
            # LibMTL writes into the gradients, which torch 2 sets to None by default.
            def zero_grad_share_params(self):
                self.encoder.zero_grad(set_to_none=False)

        class Repeated(nn.Module):
            def __init__(self, body: nn.Module, times: int):
                super().__init__()
                self.body, self.times = body, times

            def forward(self, inputs):
                return [self.body(inputs)] * self.times

        if on_representation:
            encoder = Repeated(self.trunk, self.tasks)
        names = [f"task_{task}" for task in range(self.tasks)]
        decoders = nn.ModuleDict(dict(zip(names, self.heads, strict=True)))
        device = torch.device("cpu")
        self.model = Model(names, lambda: encoder, decoders, on_representation, False, device)
        self.model.init_param()

        def step():
            outputs = self.model(self.inputs)
            losses = torch.zeros(self.tasks)
            for task, name in enumerate(names):
                losses[task] = self._loss(outputs[name][:, 0], self.labels[task])
            self.model.backward(losses, **settings)

        return step

    def secs(self, steps: int) -> float:
        """Return the mean seconds of a step, over some steps."""
        started = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.step()
            self.optimizer.step()
        return (time.perf_counter() - started) / steps


def main() -> None:
    """Answer cases until the input ends, and build each case only once."""
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(int(sys.argv[1]))
    built = functools.lru_cache(maxsize=64)(Steps)
    for line in sys.stdin:
        case = json.loads(line)
        steps = case.pop("steps")
        try:
            answer = {"secs": built(**case).secs(steps)}
        except Exception as error:  # A library may fail in any way; the table then has no number.
            answer = {"why": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
