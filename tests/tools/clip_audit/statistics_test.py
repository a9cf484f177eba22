"""Rows of samples and figures of a run, against loops over the visits."""

import numpy as np
import pytest

from mtl.tools.clip_audit import ClipAudit, report, statistics, tables, visits

BATCHES, ROWS = 12, 7


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Random visits of 20 samples, two of them with a norm that is not finite."""
    directory = str(tmp_path_factory.mktemp("audit"))
    rng = np.random.default_rng(1)
    made = visits.Record(directory, ClipAudit(percentile=60.0, window=3))
    for step in range(BATCHES):
        norms = rng.exponential(size=ROWS)
        norms[3] = {4: np.nan, 7: np.inf}.get(step, norms[3])
        examples = {
            "norm": norms,
            "norm/task/a": norms * rng.uniform(size=ROWS),
            "norm/task/b": norms * rng.uniform(size=ROWS),
            "blame": rng.dirichlet(np.ones(ROWS)),
            "loss/a": rng.exponential(size=ROWS),
            "el2n/a": rng.exponential(size=ROWS),
            "margin/a": np.where(np.arange(ROWS) % 3, rng.normal(size=ROWS), np.nan),
            "label/a": rng.integers(0, 3, ROWS).astype(float),
            "prediction/a": rng.integers(0, 3, ROWS).astype(float),
        }
        batch = {"norm": np.nan if step == 5 else rng.exponential(), "layer/x": rng.uniform()}
        ids = np.array([b"sample %d" % n for n in rng.choice(20, ROWS, replace=False)], object)
        made.add(step, ids, examples, batch)
        if step % 5 == 4:
            made.save(step)
    made.save(BATCHES)
    return directory


def test_thresholds_are_percentiles_of_the_batches_before_without_the_one_they_judge(record):
    rows, batches = visits.read(record)
    assert np.isnan(batches["threshold"][0]) and np.isnan(batches["example_threshold"][0])
    for batch in range(1, BATCHES):
        before = range(max(0, batch - 3), batch)
        of_batches = batches["norm"][list(before)]
        of_examples = rows["norm"][np.isin(rows["batch"], before)]
        for name, values in (("threshold", of_batches), ("example_threshold", of_examples)):
            expected = np.percentile(values[np.isfinite(values)], 60)
            np.testing.assert_allclose(batches[name][batch], expected)


def test_a_record_goes_on_where_it_was_and_forgets_what_is_trained_once_more(record, tmp_path):
    rows, batches = visits.read(record)
    settings = ClipAudit(percentile=60.0, window=3)
    for last in (5, 8):  # Saved up to 5 and up to 8; a restore of 5 takes the second part back.
        again = visits.Record(str(tmp_path), settings, last_step=5)
        for batch in range(5 if last == 8 else 0, last):
            own = rows["batch"] == batch
            examples = {n: v[own] for n, v in rows.items() if n not in ("id", "batch")}
            kept = {n: batches[n][batch] for n in ("norm", "layer/x")}
            again.add(
                batches["step"][batch],
                np.array([i.encode() for i in rows["id"][own]], object),
                examples,
                kept,
            )
        again.save(last)
    found_rows, found = visits.read(str(tmp_path))
    for name, values in found.items():
        np.testing.assert_array_equal(values, batches[name][:8], err_msg=name)
    assert list(found_rows["id"]) == list(rows["id"][rows["batch"] < 8])


def test_samples_have_the_statistics_of_their_visits(record):
    rows, batches = visits.read(record)
    samples = statistics.of_samples(rows, batches, first_visits=2)
    assert sorted(samples["id"]) == sorted(set(rows["id"]))
    means = samples["norm/mean/all"]
    assert (np.diff(means[~np.isnan(means)]) <= 0).all()
    for place, sample in enumerate(samples["id"]):
        own = np.flatnonzero(rows["id"] == sample)
        expected = _expected({n: v[own] for n, v in rows.items()}, batches)
        for name, value in expected.items():
            found = samples[name][place]
            np.testing.assert_allclose(found, value, err_msg=f"{sample} {name}")
        if samples["visits"][place] > samples["not_finite"][place]:
            means = [
                np.mean(rows[f"norm/task/{t}"][own], where=np.isfinite(rows["norm"][own]))
                for t in "ab"
            ]
            assert samples["task"][place] == "ab"[int(np.argmax(means))]
    assert samples["not_finite"].sum() == 2


def _expected(own, batches):
    """Return the statistics of a sample, computed by hand from its visits."""
    finite = np.isfinite(own["norm"])
    number = np.arange(len(finite))
    expected = {"visits": len(finite), "not_finite": (~finite).sum(), "label/a": own["label/a"][-1]}
    for window, mask in (("first", finite & (number < 2)), ("all", finite)):
        for name in ("norm", "norm/task/a"):
            values = own[name][mask]
            for what in ("mean", "median", "max"):
                expected[f"{name}/{what}/{window}"] = (
                    getattr(np, what)(values) if len(values) else np.nan
                )
        for name in ("el2n/a", "margin/a"):
            values = own[name][mask & ~np.isnan(own[name])]
            expected[f"{name}/{window}"] = values.mean() if len(values) else np.nan
    expected["norm/last"] = own["norm"][-1]
    threshold, norms = batches["example_threshold"][own["batch"]], own["norm"]
    judged = finite & ~np.isnan(threshold)
    if judged.any():
        expected["share_above"] = (norms > threshold)[judged].mean()
        expected["shrink"] = np.minimum(1, threshold / norms)[judged].mean()
    known = ~np.isnan(batches["threshold"][own["batch"]])
    clipped = (batches["norm"] > batches["threshold"])[own["batch"]]
    if known.any():
        expected["share_in_clipped_batches"] = clipped[known].mean()
    expected["blame"] = 7 * own["blame"][finite].mean() if finite.any() else np.nan
    return expected


def test_figures_of_the_run(record):
    rows, batches = visits.read(record)
    samples = statistics.of_samples(rows, batches, first_visits=2)
    figures = statistics.of_run(rows, batches, samples)
    judged = np.isfinite(batches["norm"]) & ~np.isnan(batches["threshold"])
    clipped = batches["norm"][judged] > batches["threshold"][judged]
    assert figures["batches clipped"] == clipped.mean()
    assert figures["batches not finite"] == 1 and figures["visits not finite"] == 2
    assert 1 / 20 <= figures["norm mass in the top 1% of samples"] < 1


def test_agreement_is_spearmans_over_the_samples_that_both_know():
    first = {"id": np.arange(6), "norm/mean/all": np.array([1, 5, 2, 2, 9, np.nan])}
    second = {"id": np.array([0, 1, 2, 3, 5]), "norm/mean/all": np.array([10, 90, 20, 25, 3.0])}
    # Ranks 1, 4, 2.5, 2.5 and 1, 4, 2, 3.
    expected = np.corrcoef([1, 4, 2.5, 2.5], [1, 4, 2, 3])[0, 1]
    np.testing.assert_allclose(statistics.agreement(first, second), expected)


def test_tables_are_read_back_and_a_nan_is_an_empty_cell(tmp_path):
    columns = {"id": np.array(["a", "b"]), "x": np.array([0.5, np.nan]), "n": np.array([1, 2])}
    tables.write_parquet(str(tmp_path / "t.parquet"), columns)
    found = tables.read_parquet(str(tmp_path / "t.parquet"))
    for name, values in columns.items():
        np.testing.assert_array_equal(found[name], values)
    tables.write_csv(str(tmp_path / "t.csv"), columns)
    assert (tmp_path / "t.csv").read_text() == "id,x,n\na,0.5,1\nb,,2\n"


def test_each_label_has_the_samples_that_hold_it():
    samples = {
        "label/y": np.array([2.0, np.nan, -1, 2]),
        "norm/task/y/mean/all": np.array([1.0, 9, 5, 3]),
        "share_above": np.array([0.0, 1, 0.5, 1]),
    }
    assert statistics.by_class(samples, "y") == {-1.0: (1, 5.0, 0.5), 2.0: (2, 2.0, 0.5)}
    samples["label/y"][:] = np.nan
    assert statistics.by_class(samples, "y") == {}


def test_a_bar_shows_the_label_of_a_number_in_full():
    samples = {
        "label/y": np.array([0.25, 0.75, 2.0, 3.0]),
        "norm/task/y/mean/all": np.ones(4),
        "share_above": np.array([0.0, 1.0, 0.5, np.nan]),
    }
    bars = report._clipped_shares(samples, "y")
    assert [(bar.name, bar.value) for bar in bars] == [("0.25", 0.0), ("0.75", 1.0), ("2", 0.5)]


def test_a_cell_with_any_text_is_one_cell():
    assert report._write_table(["id"], [["a|b\nc"]]).endswith("| a\\|b c |")
