"""The protocols of the parts of a run, such as columns, networks, heads and sources.

To write a part, derive a class from its protocol, or define the same members:

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Halves(types.Weighting):
        reads_losses = False

        def __call__(self, losses, step):
            return {task: 0.5 * loss for task, loss in losses.items()}

A member with `abstractmethod` is required. All other members have defaults. A class that does not
derive from the protocol may omit members with a default, because `read_member` returns the default
of a missing member.
"""

from mtl.types.auxiliary import Activations, Attack, AuxiliaryLoss
from mtl.types.columns import (
    Accumulator,
    Augmentation,
    Column,
    Embedding,
    HistoryEncoder,
    RowNames,
    Statistics,
    Table,
    Tokenizer,
)
from mtl.types.data import (
    BatchSampler,
    Blocks,
    DecodeOnlyError,
    Reading,
    RowOrder,
    RowSampler,
    Source,
)
from mtl.types.emitting import Emitting
from mtl.types.extensions import Forward, MakeExtension, StepExtension
from mtl.types.heads import (
    AddingHead,
    BatchHead,
    CalibratedHead,
    CheckingHead,
    ClassHead,
    CombinedMetric,
    ComparableHead,
    ComposingHead,
    ExampleHead,
    FittedHead,
    GroupHead,
    Head,
    HeadBlock,
    JointHead,
    LossInputs,
    MapHead,
    NamingHead,
    TeachableHead,
    UncertainHead,
    UnlabelledHead,
    WeighingHead,
)
from mtl.types.hooks import Hook, Steps
from mtl.types.networks import Mixing, Mixture, Network, Towers
from mtl.types.observers import (
    EvaluationHooks,
    ObservedRun,
    OpenObserver,
    RunHooks,
    RunObserver,
    check_span,
)
from mtl.types.parts import (
    EntrywisePart,
    are_entrywise,
    check_parts,
    count_rows,
    read_member,
    walk_parts,
)
from mtl.types.tracking import (
    FAILED,
    FINISHED,
    KILLED,
    RunDescription,
    RunPart,
    TrackedRun,
    Tracker,
    check_trackers,
)
from mtl.types.training import (
    Batch,
    Clipping,
    ForwardPass,
    Optimizer,
    Samples,
    Schedule,
    Surgery,
    Update,
    Weighting,
)
from mtl.types.values import (
    Connected,
    Gradient,
    GradientsAndVariables,
    Json,
    Metrics,
    Nested,
    Observe,
    PythonValue,
    Tensors,
)

__all__ = [
    "BatchSampler",
    "Blocks",
    "EntrywisePart",
    "are_entrywise",
    "FittedHead",
    "CalibratedHead",
    "ClassHead",
    "MapHead",
    "GroupHead",
    "AddingHead",
    "BatchHead",
    "ComposingHead",
    "UnlabelledHead",
    "JointHead",
    "NamingHead",
    "CheckingHead",
    "Accumulator",
    "Activations",
    "Attack",
    "Augmentation",
    "AuxiliaryLoss",
    "Batch",
    "Clipping",
    "Column",
    "CombinedMetric",
    "ComparableHead",
    "Connected",
    "DecodeOnlyError",
    "Embedding",
    "Emitting",
    "EvaluationHooks",
    "ExampleHead",
    "FAILED",
    "FINISHED",
    "Forward",
    "ForwardPass",
    "Gradient",
    "GradientsAndVariables",
    "Head",
    "HeadBlock",
    "Hook",
    "HistoryEncoder",
    "Json",
    "KILLED",
    "LossInputs",
    "MakeExtension",
    "Metrics",
    "Mixing",
    "Mixture",
    "Nested",
    "Network",
    "Observe",
    "ObservedRun",
    "OpenObserver",
    "Optimizer",
    "PythonValue",
    "Reading",
    "RowNames",
    "RowOrder",
    "RowSampler",
    "RunDescription",
    "RunHooks",
    "RunObserver",
    "RunPart",
    "Samples",
    "Schedule",
    "Source",
    "Statistics",
    "StepExtension",
    "Steps",
    "Surgery",
    "Table",
    "TeachableHead",
    "Tensors",
    "Tokenizer",
    "Towers",
    "TrackedRun",
    "Tracker",
    "UncertainHead",
    "Update",
    "WeighingHead",
    "Weighting",
    "check_parts",
    "check_span",
    "check_trackers",
    "count_rows",
    "read_member",
    "walk_parts",
]
