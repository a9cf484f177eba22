"""Mixtures of sources: the order of rows, the fields that rows lack, and refused settings."""

import dataclasses
import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mtl import checks, spec
from mtl.data import (
    arrow,
    chosen_rows,
    csv,
    field_splits,
    files,
    frames,
    json_lines,
    mixture,
    pipeline,
    sampling,
    subset,
)
from mtl.distribution import memory
from mtl.optimization import schedules
from mtl.tools.clip_audit import numbered

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={"x": "int64", "query": "string", "words": ("string", (None,))},
    labels={"clicked": "int64", "stars": "float32", "tags": ("string", (None,)), "from": "string"},
    defaults={"query": "none", "clicked": 0},
)
LABELS = {"clicks": ["clicked"], "ratings": ["stars", "tags"]}
ABSENT = {"ratings": ["query", "words"]}


def _clicks(folder, count=6):
    lines = [f"{row},q{row % 2},a|b{row},{row % 2}" for row in range(count)]
    (folder / "clicks.csv").write_text("\n".join(["x,query,words,clicked", *lines, ""]))
    return csv.Csv(files={"train": "clicks.csv", "test": "clicks.csv"}, data_dir=str(folder))


def _ratings(folder, count=4):
    rows = {"x": range(100, 100 + count), "stars": [row / 2 for row in range(count)]}
    table = pa.table({**{name: list(own) for name, own in rows.items()}, "tags": [["t"]] * count})
    parquet.write_table(table, folder / "ratings.parquet")
    return arrow.Arrow(
        files=dict.fromkeys(["train", "test"], "ratings.parquet"), data_dir=str(folder)
    )


def _mix(folder, **settings):
    if "sources" not in settings:
        settings["sources"] = {"clicks": _clicks(folder), "ratings": _ratings(folder)}
    made = {"labels": LABELS, "absent_features": ABSENT, "name_field": "from"}
    return mixture.Mixture(**{**made, **settings})


def _mix_plainly(**sources):
    """A mixture of sources that all have the field x, and its pipeline's Spec."""
    return mixture.Mixture(sources=sources), spec.Spec(features={"x": "int64"}, labels={})


def _pipe(source, fields=SPEC, **settings):
    return pipeline.Pipeline(source=source, spec=fields, **{"batch_size": 4, **settings})


def _plain(batch):
    features, labels = batch
    return {
        name: [row.tolist() if isinstance(row, np.ndarray) else row for row in value.tolist()]
        for name, value in {**features, **labels}.items()
    }


def _read(data, count=None, split="train", **settings):
    made = data.dataset(split, **{"training": count is not None, "seed": 3, **settings})
    return [_plain(batch) for batch in itertools.islice(made.as_numpy_iterator(), count)]


def _numbers(batches):
    return [batch["x"] for batch in batches]


def test_rows_lack_the_labels_and_features_of_other_sources(tmp_path):
    (batch,) = _read(_pipe(_mix(tmp_path), batch_size=10))
    assert batch["x"] == [*range(6), *range(100, 104)]
    assert batch["query"] == [b"q0", b"q1"] * 3 + [b"none"] * 4
    assert batch["words"][:2] + batch["words"][6:] == [[b"a", b"b0"], [b"a", b"b1"], [], [], [], []]
    # Not the default of an empty cell: the source never says that nobody clicked.
    assert batch["clicked"] == [0, 1] * 3 + [spec.MISSING["int64"]] * 4
    assert all(map(math.isnan, batch["stars"][:6])) and batch["stars"][6:] == [0, 0.5, 1, 1.5]
    # An empty list would mean that no tag applies.
    assert batch["tags"] == [[b""]] * 6 + [[b"t"]] * 4
    assert batch["from"] == [b"clicks"] * 6 + [b"ratings"] * 4


def test_scan_and_decode_agree(tmp_path):
    source = _mix(tmp_path)
    (batch,) = _read(_pipe(source, batch_size=10))
    places, rows = zip(*source.scan("train", SPEC), strict=True)
    assert places[0].endswith("clicks.csv line 2") and "ratings.parquet" in places[-1]

    def spell(value):
        if isinstance(value, list):
            return list(map(spell, value))
        return value.decode() if isinstance(value, bytes) else repr(value).strip("'")

    for name in SPEC.fields:
        assert spell(batch[name]) == spell([row[name] for row in rows]), name


@pytest.mark.parametrize("rates", [{"clicks": 1, "ratings": 1}, {"clicks": 3, "ratings": 1}, None])
def test_batches_hold_rows_of_all_sources_in_the_rates(tmp_path, rates):
    data = _pipe(_mix(tmp_path, rates=rates), batch_size=5)
    rows = list(itertools.chain(*_numbers(_read(data, 600))))
    share = rates["clicks"] / sum(rates.values()) if rates else 6 / 10
    drawn = np.cumsum([row < 100 for row in rows])
    assert np.abs(drawn - share * np.arange(1, 3001)).max() <= 1.5
    for source, count in ((range(6), 6), (range(100, 104), 4)):
        stream = [row for row in rows if row in source]
        epochs = [tuple(stream[i : i + count]) for i in range(0, len(stream) - count, count)]
        assert all(sorted(epoch) == list(source) for epoch in epochs)
        assert len(set(epochs)) > 10


def test_the_temperature_evens_the_sources(tmp_path):
    made, own = _mix_plainly(large=_clicks(tmp_path, 64), small=_ratings(tmp_path, 4))
    for temperature, share in ((1.0, 64 / 68), (2.0, 8 / 10), (1e30, 1 / 2)):
        source = dataclasses.replace(made, temperature=temperature)
        rows = list(itertools.chain(*_numbers(_read(_pipe(source, own), 500))))
        assert abs(sum(row < 100 for row in rows) - 2000 * share) <= 1.5


def test_alternating_batches_have_rows_of_one_source(tmp_path):
    rates = {"clicks": 2, "ratings": 1}
    data = _pipe(_mix(tmp_path, rates=rates, batches="alternating"))
    batches = _numbers(_read(data, 300))
    sources = [{row < 100 for row in batch} for batch in batches]
    assert all(len(own) == 1 for own in sources)
    assert abs(sum({True} == own for own in sources) - 200) <= 2
    stream = list(itertools.chain(*(batch for batch in batches if batch[0] >= 100)))
    epochs = [stream[i : i + 4] for i in range(0, 400, 4)]
    assert all(sorted(epoch) == [100, 101, 102, 103] for epoch in epochs)


@pytest.mark.parametrize("every", range(1, 13))
def test_each_period_sees_each_source_of_alternating_batches(tmp_path, every):
    """A fixed order would show summaries of every 100th step only one of two sources."""
    made = _mix(tmp_path, rates={"clicks": 1, "ratings": 1}, batches="alternating")
    order = made.order_rows("train", SPEC, batch_size=4, seed=1, is_shuffled=True)
    first_rows = order.take(np.arange(64 * every), np.array([0]))
    is_click = first_rows < 6  # The rows of the first source are 0 to 5.
    shares = [np.mean(is_click[start::every]) for start in range(every)]
    assert min(shares) > 0.2 and max(shares) < 0.8
    for step in (0, 3, 8, 21, 64):
        clicks = sum(is_click[:step])
        epochs = {"clicks": clicks * 4 / 6, "ratings": step - clicks}
        assert order.count_epochs(step) == pytest.approx(epochs)
        if step < 64 * every:
            assert order.take(np.array([step]), np.array([0])) == first_rows[step]


@pytest.mark.parametrize("rate", [9, 49, 99])
def test_a_rare_source_of_alternating_batches_is_seen_at_each_period(tmp_path, rate):
    made = _mix(tmp_path, rates={"clicks": rate, "ratings": 1}, batches="alternating")
    order = made.order_rows("train", SPEC, batch_size=4, seed=1, is_shuffled=True)
    rows = order.take(np.arange(100_000), np.array([0]))
    assert np.mean(rows[99::100] >= 6) == pytest.approx(1 / (rate + 1), rel=0.9)


def test_rates_follow_schedules(tmp_path):
    rise = schedules.Polynomial(value=1e-6, end_value=1.0, decay_steps=200)
    data = _pipe(_mix(tmp_path, rates={"clicks": 1, "ratings": rise}))
    batches = _numbers(_read(data, 400))
    drawn = [sum(row >= 100 for row in batch) for batch in batches]
    assert sum(drawn[:10]) <= 2 and abs(sum(drawn[200:]) - 400) <= 2
    share = np.minimum(np.arange(200) / 200, 1)
    assert abs(sum(drawn[:200]) - 4 * (share / (1 + share)).sum()) <= 2


@pytest.mark.parametrize(("batches", "is_scheduled"), [("mixed", False), ("alternating", True)])
def test_a_step_and_a_seed_decide_a_batch(tmp_path, batches, is_scheduled):
    fall = schedules.Exponential(value=3.0, decay_rate=0.5, decay_steps=20)
    rates = {"clicks": fall if is_scheduled else 3, "ratings": 1}
    sources = {"clicks": _clicks(tmp_path, 300), "ratings": _ratings(tmp_path, 50)}
    source = _mix(tmp_path, sources=sources, rates=rates, batches=batches)
    data = _pipe(source, batch_size=64)
    whole = _numbers(_read(data, 60))
    assert data.starts_anywhere
    # A new process, which has read nothing yet.
    anew = _pipe(dataclasses.replace(source), batch_size=64)
    assert _numbers(_read(anew, 10, start_step=33)) == whole[33:43]
    assert _numbers(_read(data, 60, seed=4)) != whole
    parts = [
        _numbers(_read(data, 60, num_shards=4, shard=shard, batch_size=16)) for shard in range(4)
    ]
    assert [list(itertools.chain(*own)) for own in zip(*parts, strict=True)] == whole


def test_each_source_keeps_its_order_beside_others(tmp_path):
    one = _pipe(_mix(tmp_path, rates={"clicks": 1, "ratings": 1}))
    other = _pipe(_mix(tmp_path, rates={"clicks": 4, "ratings": 1}))
    streams = [
        [row for row in itertools.chain(*_numbers(_read(data, 100))) if row < 100][:150]
        for data in (one, other)
    ]
    assert streams[0] == streams[1]


def test_the_order_of_the_files_can_stay(tmp_path):
    data = _pipe(_mix(tmp_path, rates={"clicks": 1, "ratings": 1}), shuffle_buffer=1)
    assert _numbers(_read(data, 3)) == [[0, 100, 1, 101], [2, 102, 3, 103], [4, 100, 5, 101]]


def test_splits_are_those_of_all_sources_of_some_or_of_one(tmp_path):
    source = _mix(tmp_path, splits={"test": ["ratings"]})
    data = _pipe(source, batch_size=20)
    assert len(_read(data)[0]["x"]) == 10
    assert _read(data, split="test")[0]["x"] == [100, 101, 102, 103]
    assert _read(data, split="clicks/test")[0]["x"] == list(range(6))
    assert _read(data, 1, split="clicks/train")[0]["x"] != []
    half = subset.Subset(source=_clicks(tmp_path, 100), share=0.5)
    rows = _read(_pipe(*_mix_plainly(half=half), batch_size=100))[0]["x"]
    assert 30 < len(rows) < 70 and len(set(rows)) == len(rows)


def test_sources_of_any_kind_are_mixed(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 7, "clicked": 1, "query": "q", "words": ["w"]}\n')
    table = {"x": [8, 9], "stars": [1.0, None], "tags": [["t"], []], "query": ["r", None]}
    sources = {
        "lines": json_lines.JsonLines(files={"train": "a.jsonl"}, data_dir=str(tmp_path)),
        "frame": frames.Frames(splits={"train": table}),
    }
    source = _mix(
        tmp_path,
        sources=sources,
        labels={"lines": ["clicked"], "frame": ["stars", "tags"]},
        absent_features={"frame": ["words"]},
    )
    (batch,) = _read(_pipe(source))
    assert batch["x"] == [7, 8, 9] and batch["query"] == [b"q", b"r", b"none"]
    assert batch["tags"] == [[b""], [b"t"], []] and batch["words"] == [[b"w"], [], []]
    stored = frames.store(source, SPEC, str(tmp_path / "stored"))
    assert repr(_read(_pipe(stored))) == repr([batch])
    assert frames.store(_mix(tmp_path), SPEC, str(tmp_path / "stored")) == _mix(tmp_path)


def test_passes_over_labels_read_no_other_fields(tmp_path):
    data = _pipe(_mix(tmp_path))
    query = dataclasses.replace(SPEC, features={"query": "string"}, defaults={"query": "none"})
    labels = _pipe(data.source, query).keep_labels()
    assert [len(batch["query"]) for batch in _read(labels)] == [4, 4, 2]
    # The second source has none of these fields.
    few = spec.Spec(
        features={"query": "string"}, labels={"clicked": "int64"}, defaults={"query": "n"}
    )
    batches = _read(
        _pipe(_mix(tmp_path, name_field=None, labels={"clicks": ["clicked"], "ratings": []}), few)
    )
    assert list(itertools.chain(*(batch["query"] for batch in batches)))[6:] == [b"n"] * 4
    only = _read(
        _pipe(_mix(tmp_path), spec.Spec(features={"x": "int64"}, labels={})), with_labels=False
    )
    assert [len(batch["x"]) for batch in only] == [4, 4, 2]


def test_numbers_of_rows_keep_the_order(tmp_path):
    data = _pipe(_mix(tmp_path, rates={"clicks": 1, "ratings": 2}))
    batches = _read(numbered.number_rows(data), 20)
    assert _numbers(batches) == _numbers(_read(data, 20))
    rows = {
        x: row for batch in batches for x, row in zip(batch["x"], batch[numbered.ROW], strict=True)
    }
    assert rows == {x: x if x < 100 else x - 94 for x in rows}


def test_files_of_all_sources_are_known(tmp_path):
    source = _mix(tmp_path)
    names = [path.rpartition("/")[2] for path in files.named_by(source, "train")]
    assert names == ["clicks.csv", "ratings.parquet"]
    assert len(files.named_by(source)) == 4
    timed = field_splits.ByTime(
        source=_clicks(tmp_path), field="query", starts={"later": "2024-01-01"}
    )
    told = chosen_rows.describe_left_out(_mix_plainly(timed=timed)[0])
    assert len(told) == 1 and "6 of 6 rows" in told[0]
    assert source.names == []
    assert _mix_plainly(a=_clicks(tmp_path))[0].names == ["x", "query", "words", "clicked"]


def test_the_start_of_a_run_tells_shares_and_epochs(tmp_path):
    sources = {"clicks": _clicks(tmp_path, 600), "ratings": _ratings(tmp_path, 4)}
    data = _pipe(_mix(tmp_path, sources=sources, rates={"clicks": 1, "ratings": 1}))
    assert data.describe_order(steps=300) == [
        "Source 'clicks' of the mixture: 600 of 604 rows (99.3%) give 50.0% of the examples: "
        "1.00 epochs in 300 steps.",
        "Source 'ratings' of the mixture: 4 of 604 rows (0.7%) give 50.0% of the examples: "
        "150.00 epochs in 300 steps.",
        "Training draws a row of source 'ratings' 150 times as often as a row of 'clicks': the "
        "model may memorise rows of 'ratings' (Mixture.rates).",
    ]
    rates = {"clicks": 1, "ratings": 0}
    told = _pipe(_mix(tmp_path, sources=sources, rates=rates, batches="alternating"))
    assert told.describe_order(steps=10)[2:] == [
        "No batch of 10 steps has a row of source 'ratings': its rate is too low."
    ]
    buffered = _pipe(_mix(tmp_path), shuffle_buffer=9).describe_order(90)
    assert buffered[2].startswith("Pipeline.shuffle_buffer = 9 has no effect: training mixes all")
    assert not any("times as often" in line for line in _pipe(_mix(tmp_path)).describe_order(90))


def _set(**settings):
    return lambda folder: _mix(folder, **settings)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_set(sources={}), "Mixture.sources must name a source, got {}."),
        (_set(sources={"a": 3}), "Mixture.sources['a'] must be a source, such as @csv.Csv()"),
        (_set(rates={"clicks": 1, "rating": 2}), "got 'rating'. Did you mean 'ratings'?"),
        (_set(rates={"clicks": 1}), "Mixture.rates must have a rate for each source; 'ratings'"),
        (_set(rates={"clicks": 1, "ratings": -1}), "Mixture.rates['ratings'] must be at least 0"),
        (_set(rates={"clicks": 0, "ratings": 0}), "Mixture.rates must hold one above 0"),
        (_set(rates={"clicks": 1, "ratings": 1}, temperature=2.0), "Mixture.temperature must be"),
        (_set(temperature=0), "Mixture.temperature must be above 0"),
        (_set(batches="alternate"), "Mixture.batches must be one of mixed, alternating, got"),
        (_set(labels={"click": ["clicked"]}), "Mixture.labels must be one of clicks, ratings"),
        (_set(labels={"clicks": "clicked"}), "Mixture.labels['clicks'] must be a list of texts"),
        (_set(splits={"test": []}), "Mixture.splits['test'] must name a source, got []."),
        (_set(splits={"test": ["c"]}), "Mixture.splits['test'] must be one of clicks, ratings"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, make, says):
    with pytest.raises(checks.UserError) as caught:
        make(tmp_path)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "fields", "says"),
    [
        (_set(labels={"clicks": ["click"]}), {}, "Mixture.labels['clicks'] must be one of clicked"),
        (_set(labels={"clicks": ["clicked"], "ratings": ["stars"]}), {}, "label 'tags' for a"),
        (_set(absent_features={"ratings": ["word"]}), {}, "got 'word'. Did you mean 'words'?"),
        (_set(), {"defaults": {}}, "Spec.defaults['query'] must be set, as Mixture.absent"),
        (_set(absent_features={}), {}, "Mixture.absent_features and Mixture.labels say which"),
        (_set(name_field="form"), {}, "got 'form'. Did you mean 'from'?"),
        (_set(name_field="x", labels={}), {}, "Mixture.name_field 'x' must be a text in each row"),
        (_set(splits={"train": ["clicks"]}, labels={}), {}, "Mixture.sources['clicks']: "),
    ],
)
def test_settings_that_do_not_fit_the_fields_are_refused(tmp_path, make, fields, says):
    data = _pipe(make(tmp_path), dataclasses.replace(SPEC, **fields))
    with pytest.raises(checks.UserError) as caught:
        data.dataset("train", training=True, seed=1)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_what_would_ignore_the_rates_is_refused(tmp_path):
    source = _mix(tmp_path)
    with pytest.raises(checks.UserError, match="Put Subset around its sources"):
        _pipe(subset.Subset(source=source, share=0.5))
    with pytest.raises(checks.UserError, match=r"sources\['a'\] must not be a mixture"):
        _mix_plainly(a=source)
    with pytest.raises(checks.UserError, match="Put Subset around its sources"):
        _mix_plainly(a=subset.Subset(source=source, share=0.5))
    with pytest.raises(checks.UserError, match="Pipeline.sampler must be left out, as Mixture"):
        _pipe(source, sampler=sampling.Power(label="clicked"))


def test_rows_that_do_not_lie_in_memory_are_refused(tmp_path, monkeypatch):
    windowed = dataclasses.replace(_ratings(tmp_path), window=2)
    data = _pipe(*_mix_plainly(ratings=windowed))
    with pytest.raises(checks.UserError, match="a window of 2 rows'. Leave out Arrow.window"):
        data.dataset("train", training=True, seed=1)
    monkeypatch.setattr(memory, "find_limit", lambda: 300)
    with pytest.raises(checks.UserError, match="fit into memory"):
        _mix(tmp_path).order_rows("train", SPEC, batch_size=2, seed=1, is_shuffled=True)


def test_a_bad_record_is_named_with_its_source(tmp_path):
    source = _mix(tmp_path)
    (tmp_path / "clicks.csv").write_text("x,query,words,clicked\n1,q,a,1\none,q,a,1\n")
    with pytest.raises(checks.UserError) as caught:
        _pipe(source).dataset("train", training=True, seed=1)
    assert "Mixture.sources['clicks']: " in str(caught.value)
    assert "clicks.csv line 3: field 'x' must be int64, got 'one'" in str(caught.value)


def test_a_source_without_a_split_is_named(tmp_path):
    sources = {
        "a": _clicks(tmp_path),
        "b": dataclasses.replace(_clicks(tmp_path), files={"train": "clicks.csv"}),
    }
    data = _pipe(*_mix_plainly(**sources))
    says = r"sources\['b'\]: Csv.files split must be one of train, got 'test'. Mixture.splits says"
    with pytest.raises(checks.UserError, match=says):
        data.dataset("test", training=False, seed=1)
    with pytest.raises(checks.UserError, match=says):
        list(data.source.scan("test", data.spec))
    only = dataclasses.replace(data.source, splits={"test": ["a"]})
    assert _numbers(_read(_pipe(only, data.spec, batch_size=9), split="test")) == [[*range(6)]]


def test_a_rate_without_a_source_to_take_is_refused(tmp_path):
    ends = schedules.Polynomial(value=1.0, end_value=0.0, decay_steps=10)
    source = _mix(tmp_path, rates={"clicks": ends, "ratings": 0})
    with pytest.raises(checks.UserError, match=r"one above 0, at step 10, got \[0.0, 0.0\]"):
        _pipe(source).describe_order(steps=20)


def test_an_empty_source_is_refused(tmp_path):
    (tmp_path / "none.csv").write_text("x\n")
    source, own = _mix_plainly(none=csv.Csv(files={"train": "none.csv"}, data_dir=str(tmp_path)))
    with pytest.raises(checks.UserError, match=r"sources\['none'\] must hold a record, got 0"):
        _pipe(source, own).dataset("train", training=True, seed=1)
