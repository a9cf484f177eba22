"""Writes the section on gradients: a matrix of cosines, and pairs that conflict, by layer.

told = gradient_section.tell_gradients(found)
"""

import itertools
from typing import Any

from mtl.tools.drawing import matrices
from mtl.tools.explaining import explanation, gradients
from mtl.tools.reports import blocks

_MOST_PLACES = 40
_MOST_PAIRS = 10

_GRADIENTS = (
    "The mean cosine between the gradients of two tasks over {batches} batches of {size} rows, "
    "with its standard error, at the weights that tasks share. Above 0 a step for one task helps "
    "the other, below 0 it hurts. The noise of small batches draws cosines towards 0."
)


def tell_gradients(found: explanation.Explanation) -> list[Any]:
    """Return which tasks have gradients in the same direction."""
    one = found.similarity
    if one is None:
        return []
    told: list[Any] = [blocks.Text(_GRADIENTS.format(batches=one.batches, size=one.rows))]
    drawn = [
        matrices.draw(f"cosines, {place}", one.tasks, one.tasks, one.mean[s], "task", "other task")
        # Only all shared variables together: a matrix for each layer would fill the page.
        for s, place in enumerate(one.places[:1])
    ]
    told.append(blocks.Figures(drawn))
    return [*told, *_tell_pairs(one), *_tell_places(one)]


def _list_pairs(one: gradients.Similarity) -> list[tuple[int, int]]:
    """Return the pairs of tasks with a known cosine, the strongest conflict first."""
    pairs = list(itertools.combinations(range(len(one.tasks)), 2))
    # Two tasks may have no batch in which both have labels.
    known = [pair for pair in pairs if one.counts[0][pair] > 0]
    return sorted(known, key=lambda pair: one.mean[0][pair])


def _name_pair(one: gradients.Similarity, pair: tuple[int, int]) -> str:
    return " and ".join(one.tasks[task] for task in pair)


def _tell_pairs(one: gradients.Similarity) -> list[Any]:
    pairs = _list_pairs(one)
    rows = [
        [_name_pair(one, p), float(one.mean[0][p]), float(one.error[0][p]), int(one.counts[0][p])]
        for p in pairs[: _MOST_PAIRS * 2]
    ]
    header = ["tasks", "cosine", "standard error", "batches with labels of both"]
    table = blocks.Table(header, rows, "All that is shared; pairs that conflict most come first")
    return [table, *blocks.say_cut(len(rows), len(pairs), "pairs are")] if rows else []


def _tell_places(one: gradients.Similarity) -> list[Any]:
    """Return the cosines in each layer, for the pairs with the strongest conflicts."""
    pairs = _list_pairs(one)[:_MOST_PAIRS]
    places = range(1, len(one.places))[:_MOST_PLACES]
    if not pairs:
        return []
    rows = [
        [one.places[s], one.sizes[s], *itertools.chain(*(_tell_cosine(one, s, p) for p in pairs))]
        for s in places
    ]
    header = ["variables in", "numbers"]
    for pair in pairs:
        header += [_name_pair(one, pair), "±"]
    table = blocks.Table(header, rows, "Layer by layer, with standard errors")
    return [table, *blocks.say_cut(len(rows), len(one.places) - 1, "layers are")]


def _tell_cosine(one: gradients.Similarity, s: int, pair: tuple[int, int]) -> list[Any]:
    return [float(one.mean[s][pair]), float(one.error[s][pair])]
