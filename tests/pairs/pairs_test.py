"""Pairs of features that keep what every run keeps; `python -m tests.pairs` checks all of them."""

import itertools
import os
import random

import pytest

from tests import pairs

# Each of these pairs was wrong once, or joins two features that replace or divide the same things.
_FIXED = (
    ("mean teacher", "pruning straight through"),
    ("mean teacher", "pruning"),
    ("dselect-k with entropy", "slices"),
    ("sluice with orthogonality", "fixed weights"),
    ("pruned units", "slices"),
    ("distillation", "mixup"),
    ("growing table", "warm start"),
    ("four bits", "average"),
)


def _choose() -> list[tuple[str, str]]:
    """Return the fixed pairs, and as many drawn ones as MTL_PAIRS asks for in all."""
    found = list(itertools.combinations([feature.name for feature in pairs.FEATURES], 2))
    random.Random(7).shuffle(found)
    wanted = int(os.environ.get("MTL_PAIRS", len(_FIXED)))
    return [*_FIXED, *found][:wanted]


@pytest.mark.slow
@pytest.mark.parametrize("names", _choose(), ids=" + ".join)
@pytest.mark.always
@pytest.mark.drawn(3)
def test_a_pair_keeps_what_every_run_keeps(names, tmp_path):
    try:
        outcome = pairs.check([pairs.BY_NAME[name] for name in names], tmp_path)
    except pairs.ClashError as error:
        pytest.skip(f"no gin file can hold both: they change {error}")
    assert outcome.failed == {}


# Looked-up kernels, whose gradient is sparse: the pair was refused, and the four together differed,
# although each three of them did not.
@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("snip", "star"), ("centralization", "clipped examples", "pruned units", "star")]
)
def test_kernels_that_are_looked_up_are_pruned_as_others_are(names, tmp_path):
    skipped = sorted(set(pairs.CLAIMS) - {"off", "resumes"})
    outcome = pairs.check([pairs.BY_NAME[name] for name in names], tmp_path, skipped)
    assert not outcome.failed and not outcome.refused


# Each claim failed once.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "claim"),
    [
        (("pruning by task",), "replicas"),
        (("reconstruction", "star with its norm"), "replicas"),
        (("mixture of densities", "pruning"), "is served"),
        (("keras", "piggyback"), "is served"),
        (("contrastive", "warm start"), "is finite"),
    ],
)
def test_a_claim_that_failed_once_holds(names, claim, tmp_path):
    others = sorted(set(pairs.CLAIMS) - {claim})
    outcome = pairs.check([pairs.BY_NAME[name] for name in names], tmp_path, others)
    assert not outcome.failed and not outcome.refused


@pytest.mark.slow
def test_a_difference_is_seen(tmp_path):
    # Without its exemption a network that drops units fails, so that the claims can fail.
    dropout = pairs.BY_NAME["dropout"]
    outcome = pairs.check([pairs.Feature(name="dropout", switch=dropout.switch)], tmp_path)
    assert set(outcome.failed) == {"slices", "replicas"}


def test_every_exemption_names_a_claim():
    claims = {"slices", "replicas", "off", "resumes", "is served", "is finite"}
    for feature in pairs.FEATURES:
        assert set(feature.exempt) <= claims
        assert all(feature.exempt.values())
