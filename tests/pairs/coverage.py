"""Finds pairs of features with unchecked claims, and combinations that check many of them.

open_pairs = coverage.list_open(features.FEATURES, lines)   # {pair: claims to be checked}
names, skipped = coverage.choose(open_pairs, lines, 5, random.Random(1))

A run with five features checks ten pairs at once, as in tests by covering arrays (D. Cohen et al.,
"The AETG System", IEEE Transactions on Software Engineering 23, 1997).
"""

import collections
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtl import checks
from tests.pairs import features as features_lib
from tests.pairs.claims import CLAIMS

Pair = frozenset[str]


def list_open(
    features: Sequence[features_lib.Feature],
    lines: Sequence[Mapping[str, Any]],
    skipped: Sequence[str] = (),
    only: Sequence[str] = (),
) -> dict[Pair, set[str]]:
    """Return {pair: the claims that no line has checked yet}.

    Args:
      features: all that pairs are made of.
      lines: of the output, {"features": names, "failed": {claim: why}, ...}.
      skipped: claims that nobody asks for.
      only: features, one of which is in each pair; none for all pairs.
    """
    exempt = _list_exempt(features, lines)
    by_name = {feature.name: feature for feature in features}
    found: dict[Pair, set[str]] = {}
    for one, other in itertools.combinations(by_name, 2):
        if not only or {one, other} & set(only):
            claims = set(CLAIMS) - exempt[one] - exempt[other]
            can_be_off = by_name[one].off or by_name[other].off
            found[frozenset((one, other))] = claims if can_be_off else claims - {"off"}
    for line in lines:
        for pair, claims in _list_checked(line, by_name, exempt):
            if pair in found:
                found[pair] -= claims
    asked = {pair: claims - set(skipped) for pair, claims in found.items()}
    return {pair: claims for pair, claims in asked.items() if claims}


def choose(
    open_pairs: Mapping[Pair, set[str]],
    lines: Sequence[Mapping[str, Any]],
    size: int,
    drawn: random.Random,
) -> tuple[tuple[str, ...], list[str]]:
    """Return features to be checked together, and the claims that need not be; () if none is left.

    Args:
      open_pairs: as `list_open` gives them.
      lines: of the output; pairs of a combination that failed are checked alone.
      size: the most features of a combination.
      drawn: draws where several are as good.
    """
    suspicions = _count_suspicions(lines)
    alone = {pair for pair, count in suspicions.items() if count >= 2}
    suspects = sorted((sorted(pair) for pair in open_pairs if pair in alone), key=str)
    if suspects:
        chosen = drawn.choice(suspects)
    elif open_pairs:
        hidden = _list_hidden(lines)
        chosen = _gather(open_pairs, alone | _list_refused(lines), hidden, size, drawn)
    else:
        return (), []
    inside = map(frozenset, itertools.combinations(chosen, 2))
    wanted = set().union(*(open_pairs.get(pair, set()) for pair in inside))
    return tuple(chosen), sorted(set(CLAIMS) - wanted)


def _gather(
    open_pairs: Mapping[Pair, set[str]],
    apart: set[Pair],
    hidden: Mapping[str, set[str]],
    size: int,
    drawn: random.Random,
) -> list[str]:
    """Add to an open pair the feature with which most is checked, again and again."""
    chosen = sorted(drawn.choice(sorted(open_pairs, key=sorted)))
    names = sorted(set().union(*open_pairs))
    while len(chosen) < size:
        drawn.shuffle(names)
        counts = {
            name: _count_claims([*chosen, name], open_pairs, hidden)
            for name in names
            if not any(frozenset((name, own)) in apart for own in chosen) and name not in chosen
        }
        least = _count_claims(chosen, open_pairs, hidden)
        # A feature that gin could not hold beside the others is passed over.
        fitting = (n for n in sorted(counts, key=counts.__getitem__, reverse=True))
        best = next((n for n in fitting if counts[n] > least and _can_be_held([*chosen, n])), None)
        if best is None:
            break
        chosen.append(best)
    return sorted(chosen)


def _count_claims(
    chosen: Sequence[str], open_pairs: Mapping[Pair, set[str]], hidden: Mapping[str, set[str]]
) -> int:
    """Count the open claims that one run with these features would check for its pairs."""
    total = 0
    for pair in itertools.combinations(chosen, 2):
        claims = set(open_pairs.get(frozenset(pair), ()))
        total += len(claims.difference(*(hidden[name] for name in chosen if name not in pair)))
    return total


def _list_hidden(lines: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return {feature: the claims that a run with it tells nothing about for other features}."""
    exempt = _list_exempt(features_lib.FEATURES, lines)
    return {f.name: exempt[f.name] | set(f.rounding) for f in features_lib.FEATURES}


def _can_be_held(names: Sequence[str]) -> bool:
    try:
        features_lib.make([features_lib.BY_NAME[name] for name in names])
    except (features_lib.ClashError, checks.UserError):
        return False
    return True


def _list_exempt(
    features: Sequence[features_lib.Feature], lines: Sequence[Mapping[str, Any]]
) -> dict[str, set[str]]:
    """Return {feature: the claims that it is exempt from, or that it does not keep alone}.

    A feature that cannot be trained alone has nothing to check.
    """
    exempt = {feature.name: set(feature.exempt) for feature in features}
    for line in lines:
        if len(line["features"]) == 1 and line["features"][0] in exempt:
            broken = {**line.get("refused", {}), **line.get("failed", {})}
            exempt[line["features"][0]] |= set(CLAIMS) if "trains" in broken else set(broken)
    return exempt


def _list_checked(
    line: Mapping[str, Any],
    by_name: Mapping[str, features_lib.Feature],
    exempt: Mapping[str, set[str]],
) -> Iterator[tuple[Pair, set[str]]]:
    """Yield the pairs of a line, with the claims that it has checked for them."""
    names = [name for name in line["features"] if name in by_name]
    if len(names) < max(2, len(line["features"])):
        return
    for pair in map(frozenset, itertools.combinations(names, 2)):
        if len(names) == 2:
            # A pair that cannot be trained has no other claims to check.
            yield pair, set(CLAIMS) if _is_refused(line) else set(CLAIMS) - set(line["skipped"])
        elif not _is_refused(line):
            unknown = {*line["skipped"], *line["refused"], *line["failed"]}
            for other in set(names) - pair:
                unknown |= exempt[other] | set(by_name[other].rounding)
            yield pair, set(CLAIMS) - unknown


def _count_suspicions(lines: Sequence[Mapping[str, Any]]) -> collections.Counter[Pair]:
    """Count, by pair, how many combinations of more than two features did not pass."""
    found: collections.Counter[Pair] = collections.Counter()
    for line in lines:
        if len(line["features"]) > 2 and not _has_passed(line):
            names = line.get("cause", line["features"])
            found.update(map(frozenset, itertools.combinations(names, 2)))
    return found


def _list_refused(lines: Sequence[Mapping[str, Any]]) -> set[Pair]:
    """Return the pairs that did not pass alone: nothing is learned of others beside them."""
    return {
        frozenset(line["features"])
        for line in lines
        if len(line["features"]) == 2 and not _has_passed(line)
    }


def _is_refused(line: Mapping[str, Any]) -> bool:
    return "clash" in line or "trains" in {**line["refused"], **line["failed"]}


def _has_passed(line: Mapping[str, Any]) -> bool:
    return not ("clash" in line or line["failed"] or line["refused"])
