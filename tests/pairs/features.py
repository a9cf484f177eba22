"""Features that a gin file can switch on, each as a change to a small experiment.

made = features.make([features.BY_NAME["mixup"], features.BY_NAME["pcgrad"]], train_steps=4)
"""

import atexit
import dataclasses
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mtl import (
    auxiliary,
    distribution,
    experiment,
    features,
    heads,
    histories,
    mixing,
    model,
    networks,
    serving,
    spec,
    transfer,
)
from mtl.balancing import example_clipping, methods, monitored, surgery, weighting
from mtl.data import drawn_items, pipeline, sampling, whole_groups
from mtl.features import augmentations, tokenizers
from mtl.heads import classifiers, softmax
from mtl.layers import precision, quantization
from mtl.networks import gates
from mtl.optimization import (
    adaptive_clipping,
    clipping,
    lookahead,
    optimizers,
    regularization,
    schedules,
    transforms,
    update,
)
from mtl.sparsity import criteria, densities, granularity, pruning, pruning_schedules, regrowth
from mtl.tools import affinity, clip_audit, tensorboard
from mtl.variables import averaging, freezing, sharding, stacks
from tests import tiny
from tests.conformance import auxiliary as teachers

_LATER = 1000  # A step that no run here reaches.


class ClashError(Exception):
    """Two features change the same setting, so that no gin file can hold both."""


class Draft:
    """The settings of an experiment that features change before it is built."""

    def __init__(self) -> None:
        self.settings: dict[tuple[str, str], Any] = {}
        self.columns: list[Any] = [features.Numeric(names=["x"]), _table(features.Categorical)]
        self.wrappers: list[Callable[[Any], Any]] = []
        self.heads: list[Any] = []
        self.losses: list[Any] = []
        self.pruning: list[Any] = []
        self.transforms: list[Any] = []

    def set(self, part: str, **settings: Any) -> None:
        """Set what one feature alone may set."""
        for name, value in settings.items():
            if (part, name) in self.settings:
                raise ClashError(f"{part}.{name}")
            self.settings[part, name] = value

    def read(self, part: str) -> dict[str, Any]:
        """Return the settings of a part."""
        return {name: value for (owner, name), value in self.settings.items() if owner == part}

    def build(self, **run: Any) -> experiment.Experiment:
        """Build the experiment; `run` holds settings of Run that win over those of features."""
        inner = self.read("network").get("make", _share_bottom)
        network = inner(functools.partial(networks.MLP, **self.read("trunk")))
        for wrap in self.wrappers:
            network = wrap(network)
        changed = update.Update(
            **{"optimizer": optimizers.SGD(learning_rate=0.1), **self.read("update")},
            transforms=self.transforms,
        )
        made = model.MultiTaskModel(
            columns=self.columns,
            network=network,
            heads=[
                heads.Binary(**{"name": "sign", **self.read("sign")}),
                heads.MultiClass(**{"name": "kind", "classes": 3, **self.read("kind")}),
                heads.Regression(name="size"),
                *self.heads,
            ],
            update=changed,
            auxiliary_losses=self.losses,
            pruning=self.pruning,
            **self.read("model"),
        )
        data = pipeline.Pipeline(
            source=tiny.Rows(splits=SPLITS), spec=SPEC, batch_size=24, **self.read("data")
        )
        steps = {"train_steps": 4, "checkpoint_steps": 2, "summary_steps": 2}
        return experiment.Experiment(
            data=data,
            model=made,
            run=experiment.Run(**{**steps, **self.read("run"), **run}),
            serving=serving.Serving(check_rows=16, warm_up_rows=1),
            **self.read("experiment"),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature.

    Attributes:
      name: shown by pytest, and in the table of results.
      switch: changes a draft.
      off: changes a draft so that the feature is there and does nothing to the training, such as by
        a weight of 0; None of a feature that cannot be without effect.
      exempt: {claim: why a run with this feature need not keep it}.
      rounding: {"off": how far numbers may be off, as sums are rounded otherwise}.
      enlarges: how many times larger it makes differences that come from rounding.
      shares: what features with the same word share out among them: the first takes its part, so
        none can be off beside another.
      noise: a part of the names of variables whose gradient is 0 but for rounding, which Adam
        divides by itself; slices and replicas move them apart.
    """

    name: str
    switch: Callable[[Draft], None]
    off: Callable[[Draft], None] | None = None
    exempt: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rounding: Mapping[str, float] = dataclasses.field(default_factory=dict)
    enlarges: float = 1.0
    shares: str = ""
    noise: str = ""


def make(chosen: Sequence[Feature], off: Sequence[str] = (), **run: Any) -> experiment.Experiment:
    """Build an experiment with features; those named in `off` do nothing.

    Raises:
      ClashError: two of them change the same setting.
      UserError: they are refused together.
    """
    draft = Draft()
    for feature in chosen:
        switch = feature.off if feature.name in off else feature.switch
        switch(draft)
    return draft.build(**run)


def _rows(num: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    rows = tiny.rows(num, seed)
    return {
        **rows,
        "domain": random.integers(0, 3, num),
        "user": random.integers(0, 20, num),
        "events": random.integers(0, 10, [num, 4]),
        "photo": random.integers(0, 256, [num, 4, 4, 1]).astype(np.float32),
        # An item has a word; four rows that follow each other are a group.
        "item": np.unique(rows["word"], return_inverse=True)[1].astype(np.int64),
        "group": np.arange(num) // 4,
        "events/weights": random.random([num, 4]).astype(np.float32),
    }


SPLITS = {"train": _rows(96, seed=1), "test": _rows(48, seed=2)}
SPEC = spec.Spec(
    features={
        "x": ("float32", (3,)),
        "word": "string",
        "domain": "int64",
        "user": "int64",
        "events": ("int64", (4,)),
        "events/weights": ("float32", (4,)),
        "photo": ("float32", (4, 4, 1)),
    },
    labels={
        "sign": "int64",
        "kind": "int64",
        "size": "float32",
        "item": "int64",
        "group": "int64",
    },
)


def _table(kind: Any, name: str = "word", **settings: Any) -> Any:
    return kind(names=[name], dimension=4, **settings)


def _share_bottom(mlp: Callable[..., Any]) -> Any:
    return networks.SharedBottom(trunk=mlp(layers=[8, 8]), tower=mlp(layers=[4]))


def _set(part: str, **settings: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.set(part, **settings)


def _network(make_network: Callable[..., Any]) -> Callable[[Draft], None]:
    return _set("network", make=make_network)


def _column(*columns: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.columns.extend(columns)


def _wrap(wrapper: Callable[[Any], Any]) -> Callable[[Draft], None]:
    return lambda draft: draft.wrappers.append(wrapper)


def _loss(kind: Any, **settings: Any) -> dict[str, Callable[[Draft], None]]:
    return {
        "switch": lambda draft: draft.losses.append(kind(**settings)),
        "off": lambda draft: draft.losses.append(kind(**settings, weight=0.0)),
    }


def _teach(kind: Any, **settings: Any) -> dict[str, Callable[[Draft], None]]:
    def add(draft: Draft, weight: float) -> None:
        draft.losses.append(kind(teacher=teachers.write_teacher(), weight=weight, **settings))

    return {"switch": functools.partial(add, weight=1.0), "off": functools.partial(add, weight=0.0)}


def _average_and_teach(draft: Draft, weight: float = 1.0) -> None:
    draft.set("update", average=averaging.ExponentialAverage(decay=0.9))
    draft.losses.append(auxiliary.MeanTeacher(noise=0.1, weight=weight))


def _prune(schedule: Any = None, **settings: Any) -> dict[str, Any]:
    def add(draft: Draft, schedule: Any) -> None:
        cut = {"sparsity": 0.5, **settings}
        cut = {name: value for name, value in cut.items() if value is not None}
        draft.pruning.append(pruning.Pruning(schedule=schedule, **cut))

    once = schedule or pruning_schedules.OneShot(step=1)
    later = pruning_schedules.OneShot(step=_LATER)
    off = None if "regrowth" in settings else functools.partial(add, schedule=later)
    # TensorFlow fuses no op with a mask.
    rounding = {"off": 1e-6}
    switch = functools.partial(add, schedule=once)
    return {"switch": switch, "off": off, "rounding": rounding, "shares": "kernels"}


def _surgery(method: Any, **settings: Any) -> Callable[[Draft], None]:
    return _set("model", surgery=surgery.Combine(method=method, **settings))


def _transform(transform: Any) -> Callable[[Draft], None]:
    return lambda draft: draft.transforms.append(transform)


def _optimize(optimizer: Any, **others: Any) -> Callable[[Draft], None]:
    return _set("update", optimizer=optimizer, **others)


def _quantize(kind: Any) -> Callable[[Draft], None]:
    weights = {"^network/.*/kernel$": kind}
    return _set("model", quantization=quantization.Quantization(weights=weights))


_TASKS = ["sign", "kind", "size"]
_DOMAIN = features.Identity(names=["domain"], size=3, dimension=2)
_EVENTS = features.Identity(names=["events"], size=10, dimension=4)


def _weigh_events() -> Any:
    # Another name than in a history.
    lookup = features.Identity(names=["events"], size=10, dimension=4, prefix="shares_of")
    return features.Weighted(lookups=[lookup])


def _trunk(make_trunk: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that builds a network with a trunk, from a function that builds MLPs."""
    return lambda mlp: networks.SharedBottom(trunk=make_trunk(mlp), tower=mlp(layers=[4]))


def _divide(why: str) -> dict[str, str]:
    """Return why slices and replicas need not add up to the whole batch."""
    return {"slices": why, "replicas": why}


def _watch(part: str, **settings: Any) -> dict[str, Callable[[Draft], None]]:
    """Return a feature that only observes a training, which stays the same to the bit."""
    return {"switch": _set(part, **settings), "off": _set(part, **settings)}


def _star(draft: Draft, norm: bool = False) -> None:
    draft.columns.append(_DOMAIN)
    star = networks.STAR(domain="identity_domain", layers=[8], norm=norm)
    draft.set("network", make=_trunk(lambda mlp: star))


def _pepnet(draft: Draft) -> None:
    draft.columns.append(_DOMAIN)
    draft.set(
        "network",
        make=lambda mlp: networks.PEPNet(domain=["identity_domain"], layers=[8], gate_units=4),
    )


def _hash_in_16_bits(draft: Draft) -> None:
    draft.columns.append(_table(features.Hashed, num_buckets=8, storage="bfloat16"))
    # Plain gradient descent does not round its updates.
    draft.set("update", optimizers={"^features/hashed": optimizers.LazyAdam(learning_rate=0.01)})


def _warm_start(draft: Draft) -> None:
    draft.set("experiment", warm_start=transfer.WarmStart(source=_train_source()))


@functools.cache
def _train_source() -> str:
    """Return the folder of a run without features."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tiny.train(make([]), pathlib.Path(folder, "run"))
    return f"{folder}/run"


def _pack(draft: Draft) -> None:
    draft.wrappers.append(lambda network: networks.PackNet(network=network, order=_TASKS))
    draft.set("experiment", warm_start=transfer.WarmStart(source=_train_packed()))


@functools.cache
def _train_packed() -> str:
    """Return the folder of the last run of two that leave weights free for a third task."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for number, sparsity in ((1, 0.6), (2, 0.3)):
        made, own = make([BY_NAME["pruning"]]), _TASKS[:number]
        packed = dataclasses.replace(
            made.model,
            network=networks.PackNet(network=made.model.network, order=own),
            heads=[head for head in made.model.heads if head.name in own],
            pruning=[dataclasses.replace(made.model.pruning[0], sparsity=sparsity)],
        )
        source = transfer.WarmStart(source=f"{folder}/1") if number > 1 else None
        made = dataclasses.replace(made, model=packed, warm_start=source)
        tiny.train(made, pathlib.Path(folder, str(number)))
    return f"{folder}/2"


def _mask_added_task(draft: Draft) -> None:
    draft.wrappers.append(lambda network: networks.Piggyback(network=network, added=["size"]))
    draft.set("experiment", warm_start=transfer.WarmStart(source=_train_source()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _InShards(distribution.Distribution):
    """A single process that shards tables as with two servers."""

    def _sharding(self, place: Any) -> sharding.Sharding:
        del place
        return sharding.Sharding(servers=2, min_bytes=16)


def _rank_groups(draft: Draft) -> None:
    draft.heads.append(heads.Ranking(name="order", label="sign", group="group"))
    draft.set("data", sampler=whole_groups.WholeGroups(group="group"))


def _retrieve(draft: Draft) -> None:
    negatives = drawn_items.DrawnItems(num=8, features=["word"])
    draft.heads.append(
        heads.Retrieval(name="found", label="sign", item="item", negatives=negatives)
    )
    draft.set(
        "network",
        make=lambda mlp: networks.SharedBottom(
            trunk=networks.TwoTower(
                query=mlp(layers=[6]), item=mlp(layers=[6]), item_columns=["categorical_*"]
            )
        ),
    )


def _cut_and_mix(draft: Draft) -> None:
    draft.columns.append(features.Image(names=["photo"]))
    draft.set("model", mixing=mixing.CutMix(columns=["image_photo"]))


def _add_funnel(draft: Draft) -> None:
    draft.heads += [
        heads.Binary(name="shown", label="kind", positive=[1, 2], negative=[0]),
        heads.Binary(
            name="bought", label="kind", positive=[2], negative=[0, 1], within={"kind": [1, 2]}
        ),
    ]
    loss = auxiliary.DoublyRobust(task="bought", propensity="shown", layers=[3])
    draft.losses.append(loss)


def _build_keras() -> Any:
    """Make a model of Keras of vectors, one or several."""
    start = tf.keras.initializers.GlorotUniform(seed=3)
    dense = tf.keras.layers.Dense(8, activation="relu", kernel_initializer=start)

    class Joined(tf.keras.Model):
        """Joins its inputs before a layer."""

        def __init__(self) -> None:
            super().__init__()
            self.dense = dense

        def call(self, inputs: Any) -> tf.Tensor:
            """Run the layer, [B, D] or {column: [B, D]} -> [B, 8]."""
            given = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
            flat = [tf.reshape(each, [-1, np.prod(each.shape[1:])]) for each in given]
            return self.dense(tf.concat(flat, 1))

    return Joined()


def _add_tasks(draft: Draft) -> None:
    draft.heads.extend(heads.Binary(name=f"sign_{n}", label="sign") for n in range(stacks.FROM))


FEATURES = (
    # Columns and data.
    Feature(
        name="growing table",
        switch=_column(_table(features.Growing, "user", capacity=16, eviction="age")),
    ),
    Feature(name="table of 16 bits", switch=_hash_in_16_bits),
    Feature(
        name="history",
        switch=_column(features.History(name="clicks", events=[_EVENTS], encoder=histories.GRU())),
    ),
    Feature(name="list with weights", switch=_column(_weigh_events())),
    Feature(
        name="history of interests",
        switch=_column(
            features.History(
                name="clicks",
                events=[_EVENTS],
                encoder=histories.InterestEvolution(units=4, next_event_weight=1.0),
                target=["categorical_word"],
            )
        ),
        exempt=_divide("events are told from those of other rows of the slice"),
    ),
    Feature(
        name="text",
        switch=_column(
            features.Text(
                names=["word"],
                tokenizer=tokenizers.Bytes(),
                encoder=histories.Convolution(filters=4),
                dimension=4,
            )
        ),
    ),
    Feature(
        name="unified table",
        switch=_column(
            _table(features.Unified, num_buckets=8), _table(features.Unified, "user", num_buckets=8)
        ),
    ),
    Feature(
        name="images moved at random",
        switch=_column(
            features.Image(
                names=["photo"], augmentations=[augmentations.Crop(padding=1), augmentations.Flip()]
            )
        ),
    ),
    # TensorFlow draws the first values of each shard apart.
    Feature(
        name="shards",
        switch=_set("experiment", distribution=_InShards()),
        exempt={"replicas": "those of the claim have no shards, and draws go by variable"},
    ),
    Feature(name="sampler", switch=_set("data", sampler=sampling.Power(label="sign"))),
    Feature(
        name="progressive sampler",
        switch=_set("data", sampler=sampling.Progressive(label="sign", epochs=2)),
    ),
    Feature(name="ranked groups", switch=_rank_groups),
    Feature(
        name="retrieval with drawn items",
        switch=_retrieve,
        exempt=_divide("rows are compared within a slice"),
    ),
    Feature(
        name="cache",
        **_watch("data", cache=True),
        exempt={"off": "it mixes all rows, where a stream mixes a window of them"},
    ),
    # Networks.
    Feature(
        name="dropout",
        switch=_set("trunk", dropout=0.3),
        off=_set("trunk", dropout=0.0),
        exempt=_divide("each slice and replica draws which of its units it drops"),
    ),
    Feature(
        name="batch norm",
        switch=_set("trunk", batch_norm=True),
        exempt=_divide("it sees each slice alone"),
    ),
    Feature(
        name="mmoe",
        switch=_network(
            lambda mlp: networks.MMoE(expert=mlp(layers=[6]), num_experts=3, tower=mlp(layers=[4]))
        ),
    ),
    Feature(
        name="dselect-k with entropy",
        switch=_network(
            lambda mlp: networks.MMoE(
                expert=mlp(layers=[6]), num_experts=4, gate=gates.DSelectK(k=2, entropy=0.1)
            )
        ),
    ),
    Feature(
        name="sluice with orthogonality",
        switch=_network(
            lambda mlp: networks.Sluice(
                stages=[mlp(layers=[6]), mlp(layers=[6])], orthogonality=0.1
            )
        ),
    ),
    Feature(name="star", switch=_star),
    Feature(
        name="star with its norm",
        switch=functools.partial(_star, norm=True),
        exempt={"slices": "it sees each slice alone"},
    ),
    Feature(name="pepnet", switch=_pepnet),
    Feature(name="packnet", switch=_pack),
    Feature(name="piggyback", switch=_mask_added_task),
    Feature(
        name="ple",
        switch=_network(
            lambda mlp: networks.PLE(experts=[mlp(layers=[6]), mlp(layers=[6])], num_shared=2)
        ),
    ),
    Feature(
        name="codes",
        switch=_network(
            _trunk(lambda mlp: networks.Codes(trunk=mlp(layers=[8]), num_codes=4, num_groups=2))
        ),
    ),
    Feature(
        name="rbm with chains",
        switch=_network(_trunk(lambda mlp: networks.RBM(units=6, visible="gaussian", chains=4))),
    ),
    Feature(
        name="learned branches",
        switch=_network(
            lambda mlp: networks.LTB(
                levels=[mlp(layers=[6]), mlp(layers=[6])], num_nodes=[2, 2], tower=mlp(layers=[4])
            )
        ),
    ),
    Feature(
        name="mtan", switch=_network(lambda mlp: networks.MTAN(layers=[6, 6], batch_norm=False))
    ),
    Feature(
        name="transformer of columns",
        switch=_network(
            _trunk(
                lambda mlp: networks.FTTransformer(
                    dimension=4,
                    num_blocks=1,
                    num_heads=2,
                    attention_dropout=0.0,
                    feed_forward_dropout=0.0,
                )
            )
        ),
        noise="query_key_value/bias",  # A bias of keys moves all scores of a query alike.
    ),
    Feature(
        name="keras",
        switch=_network(_trunk(lambda mlp: networks.KerasModel(build=_build_keras))),
    ),
    Feature(name="layer norm and residuals", switch=_set("trunk", layer_norm=True, residual=True)),
    Feature(
        name="aitm",
        switch=_wrap(lambda network: networks.AITM(network=network, after={"kind": ["sign"]})),
    ),
    # Heads.
    Feature(
        name="focal loss and weights",
        switch=_set("sign", focal_gamma=2.0, positive_weight=3.0, label_smoothing=0.1),
    ),
    # Their variables are stacked unless another feature has to see each one alone.
    Feature(name="64 equal tasks", switch=_add_tasks, rounding={"off": 1e-5}),
    Feature(
        name="cosine and margins",
        switch=_set(
            "kind",
            classifier=classifiers.Cosine(scale=10.0),
            objective=softmax.CrossEntropy(margin=softmax.LDAM(scale=10.0)),
        ),
        noise="network/mixture",  # It takes no notice of the scale of its input.
    ),
    Feature(
        name="mixture of densities",
        switch=lambda draft: draft.heads.append(
            heads.MixtureDensity(name="spread", label="size", num_components=2)
        ),
    ),
    Feature(
        name="gaussian mixture",
        switch=lambda draft: draft.heads.append(
            heads.GaussianMixture(name="density", num_components=2, num_starts=2)
        ),
        exempt=_divide("the averages that choose a start move by slice, those of one replica"),
    ),
    Feature(name="funnel, doubly robust", switch=_add_funnel),
    Feature(name="class prior", switch=_set("kind", class_counts=[10, 20, 30])),
    Feature(
        name="calibration by slice",
        **_watch("sign", calibration_slices={"domain": [0, 1, 2]}, knots=4),
        # TensorFlow fuses other ops if a logit has another reader.
        rounding={"off": 1e-5},
    ),
    Feature(name="metrics by slice", **_watch("model", slices={"domain": [0, 1]})),
    # Weighting and surgery.
    Feature(
        name="fixed weights",
        switch=_set(
            "model", weighting=weighting.Fixed(weights={"sign": 2.0, "kind": 1.0, "size": 0.1})
        ),
        off=_set(
            "model", weighting=weighting.Fixed(weights={"sign": 1.0, "kind": 1.0, "size": 1.0})
        ),
    ),
    Feature(
        name="uncertainty",
        switch=_set("model", weighting=weighting.UncertaintyWeighting()),
    ),
    Feature(
        name="weights by schedule",
        switch=_set(
            "model",
            weighting=weighting.Scheduled(
                weights={
                    "sign": schedules.Polynomial(value=1.0, end_value=0.2, decay_steps=4),
                    "kind": 1.0,
                    "size": 0.1,
                }
            ),
        ),
    ),
    Feature(name="random weights", switch=_set("model", weighting=weighting.RandomLossWeighting())),
    Feature(
        name="dynamic weights", switch=_set("model", weighting=weighting.DynamicWeightAverage())
    ),
    Feature(name="famo", switch=_set("model", weighting=weighting.FAMO())),
    Feature(name="pcgrad", switch=_surgery(methods.PCGrad())),
    Feature(
        name="mgda on the representation",
        switch=_surgery(methods.MGDA(normalizer="l2"), on="representation"),
    ),
    Feature(name="cagrad in some steps", switch=_surgery(methods.CAGrad(), every_steps=2)),
    Feature(
        name="modo of three samples",
        switch=_surgery(methods.MoDo()),
        exempt=_divide("its samples are parts of each slice"),
    ),
    Feature(name="moco", switch=_surgery(methods.MoCo(), scopes=["^network/"])),
    Feature(name="trimmed mean", switch=_surgery(methods.TrimmedMean())),
    Feature(name="clipped tasks", switch=_surgery(methods.Clipped(max_norm=0.5))),
    Feature(
        name="task affinity",
        **_watch("model", surgery=affinity.TaskAffinity(every_steps=2)),
        rounding={"off": 1e-6},
    ),
    Feature(name="grad drop", switch=_surgery(methods.GradDrop(leak=0.2))),
    Feature(name="grad norm", switch=_surgery(methods.GradNorm(), scopes=["^network/"])),
    # A watched tensor is an output of its op, which TensorFlow then fuses with no other op.
    Feature(
        name="monitored",
        **_watch("model", surgery=monitored.Monitored(every_steps=2)),
        rounding={"off": 1e-6},
    ),
    Feature(
        name="clipped examples",
        switch=_set("model", surgery=example_clipping.ExampleClipping(max_norm=0.5)),
    ),
    # Losses without a head.
    Feature(name="adversarial", **_loss(auxiliary.Adversarial, epsilon=0.1)),
    Feature(name="virtual adversarial", **_loss(auxiliary.VirtualAdversarial)),
    Feature(
        name="gradient reversal",
        switch=lambda draft: draft.losses.append(
            auxiliary.GradientReversal(
                head=heads.MultiClass(name="of_item", label="item", classes=3), layers=[4]
            )
        ),
    ),
    Feature(
        name="contrastive",
        **_loss(auxiliary.Contrastive, layers=[4]),
        exempt=_divide("rows are compared within a slice"),
    ),
    Feature(
        name="mean teacher",
        switch=_average_and_teach,
        off=functools.partial(_average_and_teach, weight=0.0),
    ),
    Feature(
        name="pseudo labels",
        **_loss(auxiliary.PseudoLabels, heads=["kind"], threshold=0.4, noise=0.1),
    ),
    Feature(name="distillation", **_teach(auxiliary.Distillation, heads=["kind"])),
    Feature(
        name="feature distillation",
        **_teach(auxiliary.FeatureDistillation, tensor="hidden"),
    ),
    Feature(
        name="supervised contrastive",
        **_loss(auxiliary.SupervisedContrastive, head="sign", layers=[4]),
        exempt=_divide("rows are compared within a slice"),
    ),
    Feature(
        name="reconstruction", **_loss(auxiliary.Reconstruction, layers=[4], replacement="zero")
    ),
    Feature(
        name="mixup",
        switch=_set("model", mixing=mixing.Mixup(alpha=0.5)),
        exempt=_divide("each slice mixes its own rows"),
    ),
    Feature(name="cutmix", switch=_cut_and_mix, exempt=_divide("each slice mixes its own rows")),
    # The update.
    Feature(name="lazy adam", switch=_optimize(optimizers.LazyAdam(learning_rate=0.01))),
    Feature(
        name="adamw with a schedule",
        switch=_optimize(
            optimizers.AdamW(learning_rate=schedules.Cosine(value=0.01, decay_steps=4))
        ),
        enlarges=300.0,  # It divides a small gradient by itself.
    ),
    Feature(
        name="optimizers by pattern",
        switch=_set("update", optimizers={"^features/": optimizers.Adagrad(learning_rate=0.05)}),
    ),
    Feature(
        name="lookahead",
        switch=_optimize(
            lookahead.Lookahead(optimizer=optimizers.Momentum(learning_rate=0.05), steps=2)
        ),
    ),
    Feature(name="average", **_watch("update", average=averaging.ExponentialAverage(decay=0.9))),
    Feature(name="centralization", switch=_transform(transforms.Centralization())),
    Feature(name="gradient noise", switch=_transform(transforms.Noise(scale=0.01))),
    Feature(
        name="global norm",
        switch=_set("update", clipping=clipping.GlobalNorm(max_norm=0.5)),
        off=_set("update", clipping=clipping.GlobalNorm(max_norm=1e9)),
    ),
    Feature(name="clipped by weights", switch=_set("update", clipping=adaptive_clipping.AGC())),
    Feature(
        name="clipped by past norms",
        switch=_set("update", clipping=adaptive_clipping.AutoClip(percentile=50.0, window=3)),
    ),
    Feature(
        name="clipped by pattern",
        switch=_set(
            "update",
            clipping=clipping.ByPattern(
                parts={
                    "^features/": clipping.AverageNorm(max_norm=0.01),
                    "^network/": clipping.Norm(max_norm=0.1),
                    "^head/": clipping.Value(max_value=0.05),
                }
            ),
        ),
    ),
    Feature(name="rates by pattern", switch=_set("update", rates={"^network/": 0.1})),
    Feature(
        name="row-wise adagrad",
        switch=_optimize(optimizers.RowWiseAdagrad(learning_rate=0.05)),
    ),
    Feature(name="steps skipped", **_watch("update", if_not_finite="skip")),
    Feature(
        name="penalties",
        switch=_set(
            "update",
            regularization=regularization.Regularization(l2={"kernel$": 0.01}, l1={"^head/": 0.01}),
        ),
    ),
    Feature(
        name="frozen trunk",
        switch=_set("model", freezing=freezing.Freezing(frozen=["^network/trunk/hidden_0/"])),
    ),
    Feature(
        name="frozen for some steps",
        switch=_set("model", freezing=freezing.Freezing(until={"^features/": 2})),
    ),
    # Pruning and quantization.
    Feature(name="pruning", **_prune()),
    Feature(
        name="pruning straight through",
        **_prune(
            pruning_schedules.Cubic(begin_step=1, end_step=3, every_steps=1),
            gradient="straight_through",
        ),
    ),
    Feature(
        name="rigl",
        **_prune(
            criterion=criteria.Random(),
            gradient="dense",
            regrowth=regrowth.Regrowth(until_step=3, every_steps=1),
        ),
    ),
    Feature(name="snip", **_prune(criterion=criteria.Snip(), density=densities.Global())),
    Feature(name="pruned units", **_prune(granularity=granularity.Units())),
    Feature(
        name="pruned table rows",
        **_prune(
            patterns=["^features/.*/embedding$"],
            granularity=granularity.TableRows(),
            density=densities.Global(),
        ),
    ),
    Feature(
        name="two of four weights",
        **_prune(patterns=["hidden_1/kernel$"], sparsity=None, granularity=granularity.NOfM()),
    ),
    Feature(
        name="pruned blocks",
        **_prune(
            patterns=["hidden_1/kernel$"],
            granularity=granularity.Blocks(shape=(4, 4)),
            criterion=criteria.Taylor(),
        ),
    ),
    Feature(name="wanda", **_prune(criterion=criteria.Wanda(), density=densities.Uniform())),
    Feature(
        name="pruning by task",
        **_prune(criterion=criteria.TaskSaliency(), density=densities.Global()),
    ),
    Feature(
        name="inputs of four bits",
        switch=_set(
            "model",
            quantization=quantization.Quantization(
                activations={"^network/trunk/hidden_1": quantization.Uniform(bits=4)}
            ),
        ),
        exempt=_divide("a small difference may round to another of few values"),
    ),
    Feature(name="ternary", switch=_quantize(quantization.Ternary())),
    Feature(name="four bits", switch=_quantize(quantization.Uniform(bits=4))),
    # Computing and watching a step.
    Feature(
        name="bfloat16",
        switch=_set("run", precision=precision.Precision(dtype="bfloat16")),
        exempt=_divide("sums of 16 bits round by slice, and what is cut or moved may follow"),
    ),
    Feature(
        name="float16",
        enlarges=300.0,
        switch=_set("run", precision=precision.Precision(dtype="float16", growth_steps=2)),
        exempt=_divide("sums of 16 bits round by slice, and what is cut or moved may follow"),
    ),
    Feature(
        name="xla",
        **_watch("run", precision=precision.Precision(xla=True)),
        rounding={"off": 1e-5},
        exempt={"replicas": "XLA refuses two devices that are one processor"},
    ),
    Feature(name="one step a call", **_watch("run", steps_per_call=1)),
    Feature(name="slices", switch=_set("run", micro_batches=2)),
    # TensorFlow fuses no op whose numbers are checked.
    Feature(name="check numerics", **_watch("run", check_numerics=True), rounding={"off": 1e-5}),
    Feature(
        name="tensorboard",
        **_watch(
            "experiment",
            tensorboard=tensorboard.TensorBoard(
                weights=True, gradients=True, updates=True, activations=True, graph=False
            ),
        ),
    ),
    Feature(name="warm start", switch=_warm_start),
    Feature(name="clip audit", **_watch("experiment", clip_audit=clip_audit.ClipAudit(window=2))),
)
BY_NAME = {feature.name: feature for feature in FEATURES}
