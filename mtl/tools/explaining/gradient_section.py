"""Writes the section on gradients: a matrix of cosines, and conflicting pairs of tasks by layer.

section = gradient_section.tell_gradients(explanation)
"""

import itertools
from typing import Any

from mtl.tools.drawing import matrices
from mtl.tools.explaining import explanation, gradients
from mtl.tools.reports import blocks

_MOST_PLACES = 40
_MOST_PAIRS = 10

_GRADIENTS = (
    "The mean cosine between the gradients of two tasks for shared weights, over {batches} batches "
    "of {size} rows, with its standard error. If the cosine is above 0, a step for one task "
    "helps the other task; below 0, the step hurts. The noise of small batches pulls cosines "
    "towards 0."
)


def tell_gradients(explained: explanation.Explanation) -> list[Any]:
    """Return the parts of a page that show which tasks' gradients agree or conflict.

    Args:
      explained: the explanation that the section shows.

    Returns:
      The blocks of the section; [] if the gradients are not compared.
    """
    similarity = explained.similarity
    if similarity is None:
        return []
    parts: list[Any] = [
        blocks.Text(_GRADIENTS.format(batches=similarity.batches, size=similarity.rows))
    ]
    pictures = [
        matrices.draw(
            f"cosines, {place}",
            similarity.tasks,
            similarity.tasks,
            similarity.mean[s],
            "task",
            "other task",
        )
        # Draw a matrix for all shared variables only: a matrix for each layer would fill the page.
        for s, place in enumerate(similarity.places[:1])
    ]
    parts.append(blocks.Figures(pictures))
    return [*parts, *_tell_pairs(similarity), *_tell_places(similarity)]


def _list_pairs(similarity: gradients.Similarity) -> list[tuple[int, int]]:
    """Return the pairs of tasks with a known cosine, the pair with the strongest conflict first."""
    pairs = list(itertools.combinations(range(len(similarity.tasks)), 2))
    # If no batch has labels of both tasks, the cosine of the pair is unknown.
    measured_pairs = [pair for pair in pairs if similarity.counts[0][pair] > 0]
    return sorted(measured_pairs, key=lambda pair: similarity.mean[0][pair])


def _name_pair(similarity: gradients.Similarity, pair: tuple[int, int]) -> str:
    return " and ".join(similarity.tasks[task] for task in pair)


def _tell_pairs(similarity: gradients.Similarity) -> list[Any]:
    pairs = _list_pairs(similarity)
    rows = [
        [
            _name_pair(similarity, p),
            float(similarity.mean[0][p]),
            float(similarity.error[0][p]),
            int(similarity.counts[0][p]),
        ]
        for p in pairs[: _MOST_PAIRS * 2]
    ]
    header = ["tasks", "cosine", "standard error", "batches with labels of both"]
    table = blocks.Table(header, rows, "All shared variables; pairs that conflict most come first")
    return [table, *blocks.say_cut(len(rows), len(pairs), "pairs are")] if rows else []


def _tell_places(similarity: gradients.Similarity) -> list[Any]:
    """Return the cosines in each layer, for the pairs of tasks with the strongest conflicts."""
    pairs = _list_pairs(similarity)[:_MOST_PAIRS]
    places = range(1, len(similarity.places))[:_MOST_PLACES]
    if not pairs:
        return []
    rows = [
        [
            similarity.places[s],
            similarity.sizes[s],
            *itertools.chain(*(_tell_cosine(similarity, s, p) for p in pairs)),
        ]
        for s in places
    ]
    header = ["variables in", "numbers"]
    for pair in pairs:
        header += [_name_pair(similarity, pair), "±"]
    table = blocks.Table(header, rows, "Layer by layer, with standard errors")
    return [table, *blocks.say_cut(len(rows), len(similarity.places) - 1, "layers are")]


def _tell_cosine(similarity: gradients.Similarity, s: int, pair: tuple[int, int]) -> list[Any]:
    return [float(similarity.mean[s][pair]), float(similarity.error[s][pair])]
