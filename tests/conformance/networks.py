"""One row per network: what every network must do is tested on all of them.

A new network adds a row: its gin binding, the shapes of its inputs, and the sizes of its towers.
"""

import dataclasses

import numpy as np

_TASKS = ("first", "second", "third")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network's row.

    Attributes:
      name: shown by pytest.
      gin: a configuration file under gin_configs, or bindings; it configures `configurable`.
      configurable: the class in `mtl.networks`.
      inputs: {column: shape of one example}.
      hidden: H of the towers, or the shape of a map.
      tasks: the names of the tasks.
      own_on_replicas: the part that differs between replicas, so that their gradients differ from
        the gradients of the whole batch; None if these have to be equal.
    """

    name: str
    gin: str
    configurable: str
    inputs: dict[str, tuple[int, ...]]
    hidden: int | tuple[int, ...]
    tasks: tuple[str, ...] = _TASKS
    own_on_replicas: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a tower in one example."""
        return (self.hidden,) if isinstance(self.hidden, int) else self.hidden


def draw_column(column: str, shape: tuple[int, ...], num_rows: int, seed: int = 0) -> np.ndarray:
    """Draw rows of a column; those of `domain_*` are one-hot."""
    random = np.random.default_rng([seed, *column.encode()])
    if column.startswith("domain_"):
        return np.eye(*shape, dtype=np.float32)[random.integers(0, shape[0], num_rows)]
    return random.normal(size=(num_rows, *shape)).astype(np.float32)


NETWORKS = [
    Network(
        name="packnet",
        gin="networks/packnet.gin",
        configurable="PackNet",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="piggyback",
        gin="networks/piggyback.gin",
        configurable="Piggyback",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
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
        own_on_replicas="dropout",
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
        own_on_replicas="the moments of Keras",
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
        own_on_replicas="dropout",
    ),
    Network(
        name="mmoe_of_gated_layers",
        gin="""
            networks.MMoE.expert = @networks.MLP()
            networks.MMoE.num_experts = 3
            networks.MLP.layers = [6, 6]
            networks.MLP.activation = "swiglu"
            networks.MLP.layer_norm = True
            networks.MLP.residual = True
            networks.MLP.dropout = 0.2
        """,
        configurable="MMoE",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=6,
        own_on_replicas="dropout",
    ),
    Network(
        name="ft_transformer",
        gin="networks/ft_transformer.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
        own_on_replicas="dropout",
    ),
    Network(
        name="ft_transformer_of_one_block",
        gin="""
            networks.SharedBottom.trunk = @networks.FTTransformer()
            networks.FTTransformer.dimension = 8
            networks.FTTransformer.num_blocks = 1
            networks.FTTransformer.num_heads = 2
            networks.FTTransformer.feed_forward_factor = 3.0
            networks.FTTransformer.activation = "swiglu"
            networks.FTTransformer.residual_dropout = 0.3
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=8,
        own_on_replicas="dropout",
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
        own_on_replicas="dropout",
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
        own_on_replicas="the moments of Keras",
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
    Network(
        name="codes",
        gin="""
            networks.SharedBottom.trunk = @networks.Codes()
            networks.Codes.trunk = @networks.MLP()
            networks.Codes.num_codes = 5
            networks.Codes.num_groups = 3
            networks.MLP.layers = [6]
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=6,
    ),
    Network(
        name="categories",
        gin="""
            networks.SharedBottom.trunk = @networks.Categories()
            networks.SharedBottom.tower = @networks.MLP()
            networks.Categories.trunk = @networks.MLP()
            networks.Categories.num_variables = 2
            networks.Categories.num_classes = 3
            networks.MLP.layers = [6]
            networks.MLP.activation = "tanh"
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=6,
        own_on_replicas="draws",
    ),
    Network(
        name="rbm",
        gin="networks/rbm.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="rbm_of_cd",
        gin="""
            networks.SharedBottom.trunk = @networks.RBM()
            networks.RBM.units = 6
            networks.RBM.visible = "gaussian"
            networks.RBM.steps = 2
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=6,
        own_on_replicas="draws",
    ),
    Network(
        name="rbm_of_free_energies",
        gin="""
            networks.SharedBottom.trunk = @networks.RBM()
            networks.RBM.units = 6
            networks.RBM.visible = "gaussian"
            networks.RBM.chains = 5
            networks.RBM.output = "free_energy"
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=1,
    ),
    Network(
        name="adatt",
        gin="networks/adatt.gin",
        configurable="AdaTT",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="adatt_with_shared_experts",
        gin="""
            networks.AdaTT.experts = [@networks.MLP(), @networks.MLP()]
            networks.AdaTT.num_native = 1
            networks.AdaTT.num_shared = 2
            networks.MLP.layers = [6]
        """,
        configurable="AdaTT",
        inputs={"numeric_a": (3,)},
        hidden=6,
        tasks=("click", "click_long"),
    ),
    Network(
        name="home",
        gin="""
            include "gin_configs/networks/home.gin"
            networks.HoME.groups = {"one": ["first"], "rest": ["second", "third"]}
        """,
        configurable="HoME",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="home_without_what_keeps_experts",
        gin="""
            networks.HoME.groups = {"all": ["click", "click_long"]}
            networks.HoME.experts = [@networks.MLP(), @networks.MLP()]
            networks.HoME.num_experts = 1
            networks.HoME.expert_norm = False
            networks.HoME.feature_rank = 0
            networks.MLP.layers = [6]
            networks.MLP.activation = "linear"
        """,
        configurable="HoME",
        inputs={"numeric_a": (3,)},
        hidden=6,
        tasks=("click", "click_long"),
    ),
    Network(
        name="ltb",
        gin="""
            from mtl.optimization import schedules
            include "gin_configs/networks/ltb.gin"
            temperature/schedules.Polynomial.decay_steps = 10
        """,
        configurable="LTB",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="mtan",
        gin="networks/mtan.gin",
        configurable="MTAN",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="mtan_of_images",
        gin="""
            networks.MTAN.filters = [4, 6]
        """,
        configurable="MTAN",
        inputs={"image_a": (7, 7, 1), "numeric_b": (2,)},
        hidden=8,
        tasks=("click", "click_long"),
    ),
    Network(
        name="pepnet",
        gin="""
            include "gin_configs/networks/pepnet.gin"
            networks.PEPNet.domain = ["numeric_b"]
            networks.PEPNet.personal = ["hashed_*"]
        """,
        configurable="PEPNet",
        inputs={"numeric_a": (3,), "numeric_b": (2,), "hashed_c": (8,)},
        hidden=32,
    ),
    Network(
        name="star",
        gin="""
            include "gin_configs/networks/star.gin"
            networks.STAR.domain = "domain_b"
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "domain_b": (2,)},
        hidden=32,
    ),
    Network(
        name="stem",
        gin="""
            networks.STEM.expert = @expert/networks.MLP()
            networks.STEM.tower = @tower/networks.MLP()
            networks.STEM.num_specific = 2
            expert/networks.MLP.layers = [16]
            tower/networks.MLP.layers = [32]
            networks.STEM.own = {"click": ["click_*"], "click_long": ["long_*"]}
        """,
        configurable="STEM",
        inputs={"numeric_a": (3,), "click_b": (8,), "long_c": (4,)},
        hidden=32,
        tasks=("click", "click_long"),
    ),
    Network(
        name="aitm",
        gin="""
            include "gin_configs/networks/aitm.gin"
            networks.AITM.after = {"second": ["third"], "first": ["second", "third"]}
        """,
        configurable="AITM",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="dbmtl",
        gin="""
            include "gin_configs/networks/dbmtl.gin"
            networks.DBMTL.after = {"second": ["third"], "first": ["second", "third"]}
        """,
        configurable="DBMTL",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="res_flow",
        gin="""
            include "gin_configs/networks/res_flow.gin"
            networks.ResFlow.after = {"second": ["third"], "first": ["second", "third"]}
        """,
        configurable="ResFlow",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="fm",
        gin="networks/fm.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=19,
    ),
    Network(
        name="deepfm",
        gin="networks/deepfm.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=51,
    ),
    Network(
        name="xdeepfm",
        gin="networks/xdeepfm.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=107,
    ),
    Network(
        name="cin_that_splits",
        gin="""
            networks.SharedBottom.trunk = @networks.CIN()
            networks.CIN.layers = [4, 6]
            networks.CIN.dimension = None
            networks.CIN.split_half = True
            networks.CIN.activation = "relu"
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "numeric_b": (3,)},
        hidden=8,
    ),
    Network(
        name="autoint",
        gin="networks/autoint.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="dcn_v2",
        gin="networks/dcn_v2.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="dcn_mix",
        gin="networks/dcn_mix.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="gdcn",
        gin="networks/gdcn.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="masknet",
        gin="networks/masknet.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="fibinet",
        gin="""
            include "gin_configs/networks/fibinet.gin"
            networks.FiBiNET.reduction = 1
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,), "hashed_c": (8,)},
        hidden=32,
    ),
    Network(
        name="final_mlp",
        gin="networks/final_mlp.gin",
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=32,
    ),
    Network(
        name="cross_of_low_rank",
        gin="""
            networks.SharedBottom.trunk = @networks.Cross()
            networks.Cross.rank = 2
            networks.Cross.gated = True
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=11,
    ),
    Network(
        name="masknet_in_series",
        gin="""
            networks.SharedBottom.trunk = @networks.MaskNet()
            networks.MaskNet.blocks = [6, 4]
            networks.MaskNet.parallel = False
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=4,
    ),
    Network(
        name="final_mlp_of_contexts",
        gin="""
            networks.SharedBottom.trunk = @networks.FinalMLP()
            networks.FinalMLP.streams = [@networks.MLP(), @networks.MLP()]
            networks.FinalMLP.contexts = [["numeric_*"], ["hashed_b"]]
            networks.FinalMLP.num_heads = 2
            networks.MLP.layers = [6]
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=14,
    ),
    Network(
        name="two_tower",
        gin="""
            networks.SharedBottom.trunk = @networks.TwoTower()
            networks.TwoTower.query = @networks.MLP()
            networks.TwoTower.item = @networks.MLP()
            networks.TwoTower.item_columns = ["hashed_*"]
            networks.MLP.layers = [6]
        """,
        configurable="SharedBottom",
        inputs={"numeric_a": (3,), "hashed_b": (8,)},
        hidden=12,
    ),
    Network(
        name="wide_and_deep",
        gin="""
            include "gin_configs/networks/wide_and_deep.gin"
        """,
        configurable="WideAndDeep",
        inputs={"numeric_a": (3,), "wide_b": (2,)},
        hidden=34,
    ),
    Network(
        name="mtan_without_norm",
        gin="""
            networks.MTAN.layers = [6, 5, 4]
            networks.MTAN.activation = "tanh"
            networks.MTAN.batch_norm = False
            networks.MTAN.tower = @networks.MLP()
            networks.MLP.layers = [3]
            networks.MLP.activation = "tanh"
        """,
        configurable="MTAN",
        inputs={"numeric_a": (3,)},
        hidden=3,
        tasks=("click", "click_long"),
    ),
    Network(
        name="ltb_of_images",
        gin="""
            networks.LTB.levels = [@networks.Convnet(), @networks.MLP(), @networks.MLP()]
            networks.LTB.num_nodes = [1, 2, 4]
            networks.LTB.temperature = 5.0
            networks.Convnet.filters = [4]
            networks.Convnet.layers = [5]
            networks.MLP.layers = [6]
            networks.MLP.activation = "tanh"
            networks.MLP.dropout = 0.1
        """,
        configurable="LTB",
        inputs={"image_a": (8, 8, 1)},
        hidden=6,
        tasks=("click", "click_long"),
        own_on_replicas="dropout",
    ),
    Network(
        name="shared_bottom_unet",
        gin="""
            include "gin_configs/networks/shared_bottom_unet.gin"
            networks.UNet.filters = [3, 4, 5]
            tower/networks.UNet.filters = [4]
        """,
        configurable="SharedBottom",
        inputs={"image_a": (6, 5, 2), "image_b": (6, 5, 1)},
        hidden=(6, 5, 4),
    ),
    Network(
        name="mtan_of_maps",
        gin="""
            include "gin_configs/networks/mtan_of_maps.gin"
            networks.MTAN.filters = [3, 4]
        """,
        configurable="MTAN",
        inputs={"image_a": (6, 5, 2)},
        hidden=(6, 5, 3),
        tasks=("click", "click_long"),
    ),
]
