"""Claims that hold for every run, whatever its features are.

outcome = claims.check([features.BY_NAME["mixup"], features.BY_NAME["pcgrad"]], folder)
"""

import collections
import dataclasses
import functools
import pathlib
import re
import shutil
import tempfile
import traceback
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from mtl import checks, distribution, verbs
from tests import tiny
from tests.pairs import features

# Patterns of justified refusals, with the reasons. Any other refusal is a defect.
REFUSALS = (
    # These weigh tasks by name, and the other feature adds a task or a loss.
    r"^(Fixed|Scheduled)\.weights must name every task",
    r"^PackNet\.order must name each task once",
    r"^AITM\.after must be one of",
    # These choose variables by a pattern, and the other feature renames or takes them.
    r"^(Freezing\.frozen|Quantization\.activations|Pruning\.patterns) must match a variable",
    r"^(Combine|Monitored)\.scopes must match a variable that trains for several tasks",
    r"^Pruning\.patterns must choose (weights that can be cut|kernels of layers|no growing table)",
    r"^Pruning\.patterns, which choose .* must choose 32 bits",
    r"^Pruning\.schedule must begin at step",
    # A warm start from a run of another shape: the other feature changes the network.
    r"^variable .* must have its shape .* in .*, got ",
    r"^ExampleClipping must get independent rows",
    r"^MultiTaskModel\.surgery must not be TaskAffinity if ",
    r"^\w+\.at must be a task, as the network shares no output",
    r"^FTTransformer inputs must be vectors",
    r"^Update\.average must be None if tables have 16 bits",
    r"^a moving average that user code reads must not be of a table",
    # The samples of a batch are not independent if a loss compares or mixes rows.
    r"^Combine\.method must suit the model",
    # A mixed row has neither the label nor the gradient of a single row.
    r"^MultiTaskModel\.mixing must be None, as the auxiliary loss",
    r"^Experiment\.clip_audit must be None if MultiTaskModel\.mixing",
    # One device has to see all gradients of a step.
    r"^Experiment\.clip_audit must be left out if several devices",
    r"^Combine\.every_steps must be 1 if replicas decide together",
)
CLAIMS = ("is finite", "resumes", "slices", "replicas", "is served", "off")
_REPLICAS = distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of checking a combination of features.

    Attributes:
      refused: {claim: the message that refuses the combination, its slices, its replicas, or the
        remaining features when others are off}.
      failed: {claim: the reason why it does not hold}.
    """

    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


def check(
    chosen: Sequence[features.Feature], folder: pathlib.Path, skipped: Sequence[str] = ()
) -> Outcome:
    """Train with the chosen features, and hold the run against every claim that is not skipped.

    Raises:
      ClashError: no gin file can hold all of them.
    """
    outcome, trained = Outcome(), {}

    def train() -> None:
        trained.update(tiny.train(features.make(chosen), folder / "whole"))

    if not _holds(outcome, "trains", train):
        return outcome
    made = features.make(chosen)
    noise = [feature.noise for feature in chosen if feature.noise]
    steady = {name: v for name, v in trained.items() if not any(part in name for part in noise)}
    # Parts of a batch, and ops that are fused, round sums otherwise.
    are_rounded = any(feature.rounding for feature in chosen)
    enlarged = max(feature.enlarges for feature in chosen)
    # The next layers follow variables that noise moves.
    rtol = 4e-3 if noise or (are_rounded and enlarged > 1) else 1e-3
    claims = {
        "is finite": lambda: _assert_finite(trained),
        "resumes": lambda: tiny.assert_same_from(made, folder / "whole", folder / "resumed", 2),
        "slices": lambda: _assert_parts(made, folder, steady, rtol, micro_batches=2),
        "replicas": lambda: _assert_parts(made, folder, steady, rtol, where=_REPLICAS),
        "is served": lambda: _assert_served(made, folder),
        "off": lambda: _assert_off(chosen, folder),
    }
    exempt = {claim for feature in chosen for claim in feature.exempt}
    for claim, hold in claims.items():
        if claim not in exempt and claim not in skipped:
            _holds(outcome, claim, hold)
    return outcome


def _holds(outcome: Outcome, claim: str, hold: Callable[[], None]) -> bool:
    """Say whether a claim holds, and note why not; training may be refused in one line."""
    try:
        hold()
    except features.ClashError:
        raise
    except AssertionError as error:
        outcome.failed[claim] = str(error).strip()[:500] or "AssertionError"
    except checks.UserError as error:
        # Without the features that are off, the others may be a combination that is refused.
        is_known = any(re.search(rule, str(error)) for rule in REFUSALS)
        may_refuse = claim in ("trains", "slices", "replicas", "off") and is_known
        (outcome.refused if may_refuse else outcome.failed)[claim] = str(error)
    except Exception:
        outcome.failed[claim] = traceback.format_exc(limit=-3)
    else:
        return True
    return False


def _assert_finite(trained: dict[str, np.ndarray]) -> None:
    for name, value in trained.items():
        if value.dtype.kind == "f":
            assert np.isfinite(value).all(), f"{name} is not finite"


def _assert_parts(
    made,
    folder: pathlib.Path,
    expected: dict[str, np.ndarray],
    rtol: float,
    micro_batches: int | None = None,
    where: distribution.Distribution | None = None,
) -> None:
    """A batch that is divided trains as the whole one does."""
    sliced = micro_batches or made.run.micro_batches
    if where and made.data.depends_on_parts:  # Its rows stay the same for as many parts.
        sliced = max(1, sliced // 2)
    run = dataclasses.replace(made.run, micro_batches=sliced)
    made = dataclasses.replace(made, run=run, distribution=where or made.distribution)
    own = folder / ("replicas" if where else "slices")
    tiny.copy_until(folder / "whole", own, 0)
    _assert_close(tiny.train(made, own), expected, rtol)


def _assert_close(
    found: dict[str, np.ndarray], expected: dict[str, np.ndarray], rtol: float
) -> None:
    """Compare the variables that are expected; without a tolerance to the bit."""
    for name, value in expected.items():
        assert name in found, f"{name} is missing"
        if value.dtype.kind == "f" and rtol:
            np.testing.assert_allclose(
                found[name], value, rtol=rtol, atol=rtol / 50, err_msg=name, verbose=False
            )
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name, verbose=False)


def _assert_served(made, folder: pathlib.Path) -> None:
    """The checkpoint is evaluated; the exporter compares its export with it, row by row."""
    metrics = verbs.evaluate(made, str(folder / "whole"))
    assert np.isfinite(metrics["loss"]), f"loss is {metrics['loss']}"
    verbs.export(made, str(folder / "whole"), str(folder / "served"))


def _assert_off(chosen: Sequence[features.Feature], folder: pathlib.Path) -> None:
    """Features that do nothing leave the training of the others as it is, to the bit.

    Each is off beside each that cannot be; of two that can be, one is off beside the other.
    """
    rtol = max(feature.rounding.get("off", 0.0) for feature in chosen)
    rtol *= max(feature.enlarges for feature in chosen)
    shares = collections.Counter(feature.shares for feature in chosen if feature.shares)
    can_be_off = [
        feature.name for feature in chosen if feature.off is not None and shares[feature.shares] < 2
    ]
    for bit in range(len(can_be_off).bit_length()):
        off = [name for number, name in enumerate(can_be_off, 1) if number >> bit & 1]
        others = tuple(feature.name for feature in chosen if feature.name not in off)
        found = tiny.train(features.make(chosen, off=off), folder / f"off_{bit}")
        expected = _train_without(others)
        # These are numbered by the place of a part in its list.
        kept = {name: expected[name] for name in expected if not name.startswith("pruning/")}
        _assert_close(found, kept, rtol)


@functools.lru_cache(20)
def _train_without(names: tuple[str, ...]) -> dict[str, np.ndarray]:
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        return tiny.train(features.make([features.BY_NAME[name] for name in names]), folder / "run")
    finally:
        shutil.rmtree(folder)
        tf.compat.v1.reset_default_graph()
