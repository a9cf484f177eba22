"""Computes statistics of samples and of the run from visits: records of a sample in a batch.

samples = statistics.of_samples(visits, batches, first_visits=3)
"""

import numpy as np

from mtl.tools.clip_audit import tables

# Norms span several powers of ten, so the table shows their median and maximum beside the mean.
_NORMS, _OF_TASKS = "norm", ("el2n/", "loss/", "margin/")


def of_samples(
    visits: tables.Columns, batches: tables.Columns, first_visits: int
) -> dict[str, np.ndarray]:
    """Return a table with a row for each sample; the sample with the largest mean norm comes first.

    Columns:

    - `id`; `visits`: the number of visits; `not_finite`: the number of visits with a NaN or
      infinite norm, which all other columns ignore.
    - `norm`, `norm/task/<task>`, `norm/scope/<scope>`: mean, median and maximum over the `first`
      visits and over `all` visits, and the value of the `last` visit.
    - `el2n`, `loss`, `margin` of each task: mean over the `first` and over `all` visits, and the
      value of the `last` visit.
    - `label`, `prediction`: the label and the prediction of each task at the last visit; `task`:
      the task whose gradient has the largest mean norm.
    - `share_above`: the share of visits above the threshold; `shrink`: the mean factor by which
      clipping would multiply the gradient in these visits.
    - `share_in_clipped_batches`: the share of visits in batches above the threshold.
    - `blame`, `blame_in_clipped_batches`: the mean share `<g_i, G> / |G|^2` of the sample's
      gradient g_i in the gradient G of the batch, times the size of the batch: 1 is the average.

    Args:
      visits: the table from `visits.read` with a row for each sample in each batch.
      batches: the table of batches from `visits.read`.
      first_visits: the number of batches with a sample that count as the first visits of the
        sample.
    """
    groups = _Groups(visits["id"], visits["batch"])
    finite = np.isfinite(visits["norm"])[groups.order]
    windows = {
        "first": finite & (groups.number < first_visits),
        "all": finite,
        # The columns "last" show the last batch with a sample, even if its values are infinite or
        # NaN.
        "last": groups.is_last,
    }
    columns: dict[str, np.ndarray] = {
        "id": groups.ids,
        "visits": groups.sizes,
        "not_finite": groups.sums(~finite),
    }
    for name, values in visits.items():
        ordered = np.asarray(values)[groups.order]
        if name.split("/")[0] == _NORMS:
            columns |= _summarize_norms(groups, name, ordered, windows)
        elif name.startswith(_OF_TASKS):
            for window, mask in windows.items():
                columns[f"{name}/{window}"] = groups.means(ordered, mask)
        elif name.startswith(("label/", "prediction/")):
            # Rows are sorted by sample, so the mask selects one row for each
            # sample, in the order of `ids`.
            columns[name] = ordered[groups.is_last]
    columns["task"] = _largest_task(columns)
    columns |= _summarize_clipping(groups, visits, batches, finite)
    # Samples without a finite norm come last, because -1 is below all norms.
    order = np.argsort(-np.nan_to_num(columns["norm/mean/all"], nan=-1), kind="stable")
    return {name: values[order] for name, values in columns.items()}


class _Groups:
    """The visits of a table, grouped by sample, and in the order of the batches within a sample.

    Attributes:
      ids: the id of each sample, [S].
      order: the indices that sort the N visits (a sample in a batch) by sample and batch, [N].
      sample: the index of the sample of each sorted visit, [N].
      number: for each of the sorted visits, how many earlier batches have its sample, [N].
      is_last: True for the last batch with a sample, [N].
      sizes: the number of batches with each sample, [S].
    """

    def __init__(self, ids: np.ndarray, batches: np.ndarray):
        self.ids, sample = np.unique(ids, return_inverse=True)
        # `lexsort` sorts by its last key first.
        self.order = np.lexsort((batches, sample))
        self.sample = sample[self.order]
        self.sizes = np.bincount(sample, minlength=len(self.ids))
        starts = np.cumsum(self.sizes) - self.sizes  # [S], the index of a sample's first visit
        self.number = np.arange(len(ids)) - starts[self.sample]
        self.is_last = self.number == self.sizes[self.sample] - 1

    def sums(self, values: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Sum values by sample, [N] -> [S], over the visits in a mask.

        Args:
          values: a number or a bool for each visit (a sample in a batch), sorted by `order`, [N].
          mask: bool [N]; None for all visits.
        """
        weights = np.asarray(values, np.float64)
        if mask is not None:
            weights = np.where(mask, weights, 0.0)
        # `bincount` needs one pass over the visits; a loop over millions of samples would be slow.
        return np.bincount(self.sample, weights, minlength=len(self.ids))

    def means(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Average values by sample, [N] -> [S]; NaN values do not count."""
        mask = mask & ~np.isnan(values)
        counts = self.sums(np.ones(len(values)), mask)
        return _divide_values(self.sums(values, mask), counts)

    def maxima(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return each sample's maximum, [N] -> [S]; NaN if `mask` leaves out all its batches."""
        maxima = np.full(len(self.ids), -np.inf)
        # An assignment by index would use one visit of each sample only;
        # `maximum.at` uses all visits.
        np.maximum.at(maxima, self.sample[mask], values[mask])
        return np.where(np.isinf(maxima), np.nan, maxima)

    def medians(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return each sample's median, [N] -> [S]; NaN if `mask` leaves out all its batches."""
        sample, values = self.sample[mask], values[mask]
        # Sort by sample and value, so that a median lies in the middle of the sample's values.
        values = values[np.lexsort((values, sample))]
        sizes = np.bincount(sample, minlength=len(self.ids))
        if not len(values):
            return np.full(len(self.ids), np.nan)
        # If `mask` leaves out all values of the last sample, its index would lie behind the end;
        # its median becomes NaN below.
        starts = np.minimum(np.cumsum(sizes) - sizes, len(values) - 1)
        # The two middle indices, which are equal for an odd number of values.
        low, high = (starts + np.maximum(sizes - 1, 0) // 2, starts + sizes // 2)
        middle = (values[low] + values[np.minimum(high, len(values) - 1)]) / 2
        return np.where(sizes > 0, middle, np.nan)


def _summarize_norms(
    groups: _Groups, name: str, values: np.ndarray, windows: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    columns = {}
    for window in ("first", "all"):
        mask = windows[window] & np.isfinite(values)
        columns[f"{name}/mean/{window}"] = groups.means(values, mask)
        columns[f"{name}/median/{window}"] = groups.medians(values, mask)
        columns[f"{name}/max/{window}"] = groups.maxima(values, mask)
    return {**columns, f"{name}/last": values[windows["last"]]}


def _largest_task(columns: dict[str, np.ndarray]) -> np.ndarray:
    prefix, suffix = "norm/task/", "/mean/all"
    names = [n for n in columns if n.startswith(prefix) and n.endswith(suffix)]
    tasks = np.array([name[len(prefix) : -len(suffix)] for name in names])
    return tasks[np.argmax(np.nan_to_num([columns[name] for name in names], nan=-1), axis=0)]


def _summarize_clipping(
    groups: _Groups, visits: tables.Columns, batches: tables.Columns, finite: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the columns about clipping, which compare norms with thresholds."""
    # Batches are numbered from 0 without gaps, so a batch's number is also its row in the table.
    batch = visits["batch"][groups.order]
    norms, threshold = visits["norm"][groups.order], batches["example_threshold"][batch]
    # Ignore samples in the first batch: without earlier batches, it has no clipping threshold.
    has_threshold = finite & ~np.isnan(threshold)
    shrink = _find_factor(threshold, norms)
    # Multiply by the size of the batch: otherwise samples of a small last batch would stand out.
    blame = visits["blame"][groups.order] * batches["rows"][batch]
    in_clipped = is_clipped(batches)[batch]
    is_judged = ~np.isnan(batches["threshold"][batch])
    return {
        "share_above": groups.means((norms > threshold).astype(float), has_threshold),
        "shrink": groups.means(shrink, has_threshold),
        "share_in_clipped_batches": groups.means(in_clipped.astype(float), is_judged),
        "blame": groups.means(blame, finite),
        "blame_in_clipped_batches": groups.means(blame, finite & in_clipped),
    }


def is_clipped(batches: tables.Columns) -> np.ndarray:
    """Return for each batch whether clipping would change its gradient.

    Args:
      batches: the table of batches from `visits.read`.

    Returns:
      bool [batches]: True if the norm is finite and above the threshold of the batch; False without
      a threshold.
    """
    return np.isfinite(batches["norm"]) & (batches["norm"] > batches["threshold"])


def of_run(
    visits: tables.Columns, batches: tables.Columns, samples: tables.Columns
) -> dict[str, float]:
    """Compute statistics of the whole run.

    Args:
      visits: the table of visits from `visits.read`.
      batches: the table of batches from `visits.read`.
      samples: the table of samples from `of_samples`.

    Returns:
      {name: value}; shares are in [0, 1], or NaN if no batch or sample has a clipping threshold.
    """
    has_threshold = ~np.isnan(batches["threshold"]) & np.isfinite(batches["norm"])
    factor = _find_factor(batches["threshold"], batches["norm"])
    threshold = batches["example_threshold"][visits["batch"]]
    above = (visits["norm"] > threshold)[np.isfinite(visits["norm"]) & ~np.isnan(threshold)]
    norms = np.sort(np.nan_to_num(samples["norm/mean/all"]))[::-1]
    # Take at least one sample: with fewer than 50 samples, 1% would be rounded to 0.
    top = norms[: max(1, round(len(norms) / 100))]
    return {
        "samples": len(norms),
        "visits": len(visits["norm"]),
        "batches": len(batches["norm"]),
        "batches clipped": average(is_clipped(batches)[has_threshold]),
        "mean factor of a batch": average(factor[has_threshold]),
        "batches not finite": int(np.sum(~np.isfinite(batches["norm"]))),
        "visits above the threshold": average(above),
        "visits not finite": int(np.sum(~np.isfinite(visits["norm"]))),
        "norm mass in the top 1% of samples": average(top) * len(top) / max(norms.sum(), 1e-30),
    }


def by_class(samples: tables.Columns, task: str) -> dict[float, tuple[int, float, float]]:
    """Return {label: (number of samples, mean norm of the task's gradient, mean of `share_above`)}.

    Args:
      samples: the table of samples from `of_samples`.
      task: the name of the task.
    """
    labels = samples[f"label/{task}"]
    known_rows = np.flatnonzero(~np.isnan(labels))
    distinct, places = np.unique(labels[known_rows], return_inverse=True)
    # Sort once, because a separate mask for each of many labels would read all rows every time.
    order = known_rows[np.argsort(places, kind="stable")]
    groups = np.split(order, np.cumsum(np.bincount(places, minlength=1))[:-1])
    return {
        float(label): (
            len(rows),
            average(samples[f"norm/task/{task}/mean/all"][rows]),
            average(samples["share_above"][rows]),
        )
        for label, rows in zip(distinct, groups, strict=False)
    }


def agreement(first: tables.Columns, second: tables.Columns) -> float:
    """Return Spearman's rank correlation of the mean norms of samples that both audits have.

    Args:
      first: the table of samples of an audit, from `of_samples`.
      second: the table of another audit; samples are matched by `id`.

    Returns:
      The correlation, in [-1, 1]; NaN if fewer than two samples have a norm in both audits.
    """
    # Audits of other splits or with other filters may have other samples.
    _, left, right = np.intersect1d(first["id"], second["id"], return_indices=True)
    pairs = np.stack([first["norm/mean/all"][left], second["norm/mean/all"][right]])
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if pairs.shape[1] < 2:
        return np.nan
    return float(np.corrcoef(_rank_values(pairs[0]), _rank_values(pairs[1]))[0, 1])


def _rank_values(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value; equal values get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    # `cumsum` gives the last rank of each group of equal values, counted from 1.
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _find_factor(thresholds: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return the factors by which clipping would multiply gradients."""
    # A norm of 0 is never clipped: its quotient is infinite, and the factor becomes 1.
    return np.minimum(1.0, _divide_values(thresholds, norms, where_zero=np.inf))


def _divide_values(values: np.ndarray, by: np.ndarray, where_zero: float = np.nan) -> np.ndarray:
    out = np.full(np.broadcast(values, by).shape, where_zero)
    # With `where`, NumPy skips divisions by 0 and gives no warning.
    return np.divide(values, by, out=out, where=by != 0)


def average(values: np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN if all values are NaN."""
    values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    return float(np.mean(values)) if len(values) else np.nan
