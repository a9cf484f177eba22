import itertools
import random

import pytest

from tests import pairs
from tests.pairs import coverage
from tests.pairs.claims import CLAIMS

NAMES = ("mixup", "pcgrad", "average", "slices")
FEATURES = [pairs.BY_NAME[name] for name in NAMES]


def line(names, **outcome):
    return {"features": list(names), "skipped": [], "refused": {}, "failed": {}, **outcome}


def find_open(*lines):
    return coverage.list_open(FEATURES, lines)


def test_a_run_checks_all_of_its_pairs_but_for_claims_that_another_feature_is_exempt_from():
    before, after = find_open(), find_open(line(NAMES))
    assert len(before) == 6
    # Mixup mixes the rows of each slice: a run with it tells nothing of others in slices.
    assert pairs.BY_NAME["mixup"].exempt.keys() == {"slices", "replicas"}
    beside = [frozenset(pair) for pair in itertools.combinations(NAMES[1:], 2)]
    assert {pair: claims for pair, claims in after.items() if claims != {"off"}} == {
        pair: before[pair] & {"slices", "replicas"} for pair in beside
    }


def test_a_claim_that_a_run_does_not_keep_stays_open():
    after = find_open(line(NAMES, failed={"resumes": "not to the bit"}))
    assert len(after) == 6
    assert all("resumes" in claims for claims in after.values())
    refused = find_open(line(NAMES, refused={"trains": "must be None"}))
    assert refused == find_open()


def test_a_pair_that_is_refused_is_done():
    done = frozenset(NAMES[:2])
    assert done not in find_open(line(NAMES[:2], refused={"trains": "must be None"}))
    assert done not in find_open(line(NAMES[:2], clash="update.optimizer"))
    assert done in find_open(line(NAMES[:2], skipped=list(CLAIMS[1:])))


def test_pairs_of_two_runs_that_failed_are_checked_alone():
    failed = [line(names, failed={"off": "differs"}) for names in (NAMES[:3], NAMES[:3])]
    names, skipped = coverage.choose(find_open(*failed), failed, 4, random.Random(1))
    assert len(names) == 2
    assert set(names) < set(NAMES[:3])
    assert "off" not in skipped


def test_a_run_whose_cause_is_known_casts_doubt_on_no_other_pair():
    failed = [line(NAMES, failed={"off": "differs"}, cause=NAMES[:2])] * 2
    failed.append(line(NAMES[:2], failed={"off": "differs"}))
    names, _ = coverage.choose(find_open(*failed), failed, 4, random.Random(1))
    assert len(names) == 3 and not set(NAMES[:2]) <= set(names)


@pytest.mark.medium
def test_runs_of_five_check_more_than_pairs_would():
    def count(lines):
        return sum(map(len, coverage.list_open(pairs.FEATURES, lines).values()))

    lines, drawn = [], random.Random(1)
    for _ in range(8):
        open_pairs = coverage.list_open(pairs.FEATURES, lines)
        names, skipped = coverage.choose(open_pairs, lines, 5, drawn)
        lines.append(line(names, skipped=skipped))
    assert count([]) - count(lines) > 4 * len(CLAIMS) * len(lines)
