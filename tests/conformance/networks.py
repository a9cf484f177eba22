"""One row per network: what every network must do is tested on all of them.

A new network adds a row: its gin binding, the shapes of its inputs, and the sizes of its towers.
"""

import dataclasses

_TASKS = ("first", "second", "third")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network's row.

    Attributes:
      name: shown by pytest.
      gin: a configuration file under gin_configs, or bindings; it configures `configurable`.
      configurable: the class in `mtl.networks`.
      inputs: {column: shape of one example}.
      hidden: H of the towers.
    """

    name: str
    gin: str
    configurable: str
    inputs: dict[str, tuple[int, ...]]
    hidden: int
    tasks: tuple[str, ...] = _TASKS


NETWORKS = [
    Network(
        name="shared_bottom_mlp",
        gin="networks/shared_bottom_mlp.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="shared_bottom_convnet",
        gin="networks/shared_bottom_convnet.gin",
        configurable="SharedBottom",
        inputs={"image_a": (8, 8, 1), "numeric_b": (2,)},
        hidden=32,
    ),
    Network(
        name="shared_bottom_lenet",
        gin="""
            networks.SharedBottom.trunk = @networks.Convnet()
            networks.Convnet.filters = [4, 6]
            networks.Convnet.size = 3
            networks.Convnet.padding = "valid"
            networks.Convnet.layers = [5]
            networks.Convnet.batch_norm = False
        """,
        configurable="SharedBottom",
        inputs={"image_a": (12, 12, 1)},
        hidden=5,
    ),
    Network(
        name="shared_bottom_without_towers",
        gin="""
            networks.SharedBottom.trunk = @networks.MLP()
            networks.MLP.layers = [6, 5]
            networks.MLP.activation = "gelu"
            networks.MLP.dropout = 0.2
            networks.MLP.batch_norm = True
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,)},
        hidden=5,
    ),
    Network(
        name="shared_bottom_resnet",
        gin="networks/shared_bottom_resnet.gin",
        configurable="SharedBottom",
        inputs={"image_a": (28, 28, 1), "numeric_b": (2,)},
        hidden=32,
    ),
    Network(
        name="shared_bottom_resnet_with_projections",
        gin="""
            networks.SharedBottom.trunk = @networks.ResNet()
            networks.ResNet.depth = 8
            networks.ResNet.filters = [4, 4, 7]
            networks.ResNet.shortcut = "projection"
        """,
        configurable="SharedBottom",
        inputs={"image_a": (8, 8, 3)},
        hidden=7,
    ),
    Network(
        name="shared_bottom_keras",
        gin="""
            from tests.networks import keras_models
            networks.SharedBottom.trunk = @networks.KerasModel()
            networks.KerasModel.build = @keras_models.functional
        """,
        configurable="SharedBottom",
        inputs={"image_a": (8, 8, 3)},
        hidden=5,
    ),
    Network(
        name="single_task",
        gin="networks/single_task.gin",
        configurable="SingleTask",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="mmoe",
        gin="networks/mmoe.gin",
        configurable="MMoE",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="omoe",
        gin="networks/omoe.gin",
        configurable="OMoE",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="dselect_k",
        gin="networks/dselect_k.gin",
        configurable="MMoE",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="cgc",
        gin="networks/cgc.gin",
        configurable="PLE",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="ple",
        gin="networks/ple.gin",
        configurable="PLE",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="mmoe_of_images",
        gin="""
            from mtl.networks import gates
            networks.MMoE.expert = @networks.Convnet()
            networks.MMoE.num_experts = 3
            networks.MMoE.gate = @gates.Softmax()
            networks.Convnet.filters = [4]
            networks.Convnet.layers = [5]
            gates.Softmax.layers = [6]
            gates.Softmax.dropout = 0.3
        """,
        configurable="MMoE",
        inputs={"image_a": (8, 8, 1), "numeric_b": (2,)},
        hidden=5,
    ),
    Network(
        name="ple_of_three_levels",
        gin="""
            networks.PLE.experts = [@networks.MLP(), @networks.MLP(), @networks.MLP()]
            networks.PLE.num_specific = 1
            networks.PLE.num_shared = 3
            networks.MLP.layers = [6]
            networks.MLP.batch_norm = True
            networks.MLP.dropout = 0.1
        """,
        configurable="PLE",
        inputs={"numeric_a": (3,)},
        hidden=6,
        tasks=("click", "click_long"),  # A name that is the start of another.
    ),
    Network(
        name="single_task_keras",
        gin="""
            from tests.networks import keras_models
            networks.SingleTask.trunk = @networks.KerasModel()
            networks.KerasModel.build = @keras_models.functional
        """,
        configurable="SingleTask",
        inputs={"image_a": (8, 8, 3)},
        hidden=5,
    ),
    Network(
        name="cross_stitch",
        gin="networks/cross_stitch.gin",
        configurable="CrossStitch",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="sluice",
        gin="networks/sluice.gin",
        configurable="Sluice",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=64,
    ),
    Network(
        name="cross_stitch_of_images",
        gin="""
            networks.CrossStitch.stages = [@networks.Convnet(), @networks.MLP()]
            networks.CrossStitch.per_unit = False
            networks.Convnet.filters = [4]
            networks.Convnet.layers = [5]
            networks.MLP.layers = [6]
        """,
        configurable="CrossStitch",
        inputs={"image_a": (8, 8, 1)},
        hidden=6,
        tasks=("click", "click_long"),
    ),
    Network(
        name="composed",
        gin="""
            networks.SharedBottom.trunk = @networks.Parallel()
            networks.Parallel.trunks = [@wide/networks.MLP(), @networks.Stacked()]
            networks.Stacked.trunks = [@wide/networks.MLP(), @networks.MLP()]
            wide/networks.MLP.layers = [6]
            networks.MLP.layers = [4]
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=10,
    ),
]
