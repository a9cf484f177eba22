"""Tables joined by key: the same rows through all ways to read them, absent keys, and mistakes."""

import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import checks, spec
from mtl.data import (
    arrow,
    chosen_rows,
    csv,
    files,
    frames,
    in_memory,
    joined,
    json_lines,
    mixture,
    pipeline,
    subset,
)
from mtl.tools.clip_audit import numbered

pytestmark = pytest.mark.medium

SPEC = spec.Spec(
    features={
        "x": "int64",
        "age": "float32",
        "country": "string",
        "tags": ("string", (None,)),
        "sizes": ("int64", (2,)),
        "price": "float32",
    },
    labels={"y": "int64", "tier": "int64", "kinds": ("string", (None,))},
    defaults={"age": "nan", "country": "none", "sizes": -7, "price": -1.0},
)
COUNT = 60
USERS = {
    number: {
        "age": 20 + number / 2,
        "country": f"c{number % 3}",
        "tags": [f"t{own}" for own in range(number % 4)],
        "sizes": [number, 2 * number],
        "tier": number % 2,
        "kinds": ["k"] * (1 + number % 2),
    }
    for number in range(8)
}
ITEMS = {f"i{number}": number * 1.5 for number in range(5)}
FIELDS = {"user": ["age", "country", "tags", "sizes", "tier", "kinds"], "item": ["price"]}
ABSENT = {
    "age": float("nan"),
    "country": "none",
    "tags": [],
    "sizes": [-7, -7],
    "tier": spec.MISSING["int64"],
    "kinds": [""],
}


def _list_clicks():
    """Rows of clicks: some users and items are unknown, and some are absent."""
    for row in range(COUNT):
        user = None if row % 11 == 0 else (row * 7) % 10
        item = "" if row % 13 == 0 else f"i{row % 6}"
        yield {"x": row, "user": user, "item": item, "y": row % 2}


def _expect():
    """The joined rows, written as one would say it."""
    rows = []
    for click in _list_clicks():
        user = USERS.get(click["user"], ABSENT)
        rows.append(
            {"x": click["x"], "y": click["y"], **user, "price": ITEMS.get(click["item"], -1)}
        )
    return rows


def _write_clicks(folder, kind):
    rows = list(_list_clicks())
    if kind == "csv":
        lines = [
            f"{row['x']},{'' if row['user'] is None else row['user']},{row['item']},{row['y']}"
            for row in rows
        ]
        (folder / "clicks.csv").write_text("\n".join(["x,user,item,y", *lines, ""]))
        return csv.Csv(files={"train": "clicks.csv"}, data_dir=str(folder))
    if kind == "frame":
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        columns["user"] = ["" if user is None else str(user) for user in columns["user"]]
        return frames.Frames(splits={"train": columns})
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    parquet.write_table(table, folder / "clicks.parquet", row_group_size=7)
    window = 20 if kind == "windows" else None
    return arrow.Arrow(files={"train": "clicks.parquet"}, data_dir=str(folder), window=window)


def _write_users(folder, kind):
    # In another order than their numbers.
    rows = [{"user": number, **USERS[number]} for number in (3, 1, 7, 0, 2, 6, 5, 4)]
    if kind == "csv":
        lines = [
            f"{row['user']}.0;{row['age']};{row['country']};{'|'.join(row['tags'])};"
            f"{'|'.join(map(str, row['sizes']))};{row['tier']};{'|'.join(row['kinds'])}"
            for row in rows
        ]
        header = "user;age;country;tags;sizes;tier;kinds"
        (folder / "users.csv").write_text("\n".join([header, *lines, ""]))
        return csv.Csv(files={"train": "users.csv"}, data_dir=str(folder), delimiter=";")
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    parquet.write_table(table, folder / "users.parquet", row_group_size=3)
    return arrow.Arrow(files={"train": "users.parquet"}, data_dir=str(folder))


def _write_items(folder):
    lines = [f'{{"item": "{item}", "price": {price}}}' for item, price in ITEMS.items()]
    (folder / "items.jsonl").write_text("\n".join([*lines, ""]))
    return json_lines.JsonLines(files={"train": "items.jsonl"}, data_dir=str(folder))


def _join(folder, clicks="csv", users="csv", **settings):
    made = {
        "source": _write_clicks(folder, clicks),
        "tables": {"user": _write_users(folder, users), "item": _write_items(folder)},
        "fields": FIELDS,
    }
    return joined.Joined(**{**made, **settings})


def _pipe(source, fields=SPEC, **settings):
    return pipeline.Pipeline(source=source, spec=fields, **{"batch_size": 7, **settings})


def _list(data, count=None, **settings):
    """Rows of plain values; texts are str."""
    made = data.dataset("train", **{"training": count is not None, "seed": 3, **settings})
    rows = []
    for one, two in itertools.islice(made.as_numpy_iterator(), count):
        batch = {**one, **two}
        rows += [
            {name: _spell(value) for name, value in zip(batch, values, strict=True)}
            for values in zip(*batch.values(), strict=True)
        ]
    return rows


def _spell(value):
    if isinstance(value, (np.ndarray, list)):
        return [_spell(one) for one in value]
    return value.decode() if isinstance(value, bytes) else np.asarray(value).item()


def _same(one, two):
    return repr(sorted(map(_sort, one))) == repr(sorted(map(_sort, two)))


def _sort(row):
    return [(name, repr(row[name])) for name in sorted(row)]


def _clean(rows):
    """Expected rows in the types of NumPy."""
    return [
        {**row, "age": float(np.float32(row["age"])), "price": float(row["price"])} for row in rows
    ]


@pytest.mark.parametrize(
    ("clicks", "users"),
    [("csv", "arrow"), ("arrow", "csv"), ("windows", "arrow"), ("frame", "csv")],
)
def test_all_ways_to_read_join_the_same_rows(clicks, users, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_ROWS_OF_CALL", 40)
    source, expected = _join(tmp_path, clicks, users), _clean(_expect())
    data = _pipe(source)
    assert _same(_list(data), expected) and len(expected) == COUNT
    scanned = [row for _, row in source.scan("train", SPEC)]
    assert _same(_clean(scanned), expected)
    blocks = source.read_values("train", SPEC)
    assert (blocks is None) == (clicks == "frame")
    kept = dataclasses.replace(data, cache=clicks in ("csv", "frame"), batch_size=6)
    assert kept.starts_anywhere
    assert _same(_list(kept, COUNT // 6), expected) or clicks == "windows"
    for row in _list(kept, 30):
        assert _same([row], [expected[row["x"]]])
    streamed = _pipe(source, batch_size=COUNT, shuffle_buffer=1)
    assert [row["x"] for row in _list(streamed)] == list(range(COUNT))


def test_small_files_stay_in_memory_as_they_do_without_a_join(tmp_path):
    source = _write_clicks(tmp_path, "csv")
    plain = spec.Spec(features={"x": "int64"}, labels={"y": "int64"})
    rows = [_pipe(source, plain), _pipe(_join(tmp_path, source=source))]
    alone, joins = ([row["x"] for row in _list(data, 30)] for data in rows)
    assert joins == alone and joins[:COUNT] != sorted(joins[:COUNT])
    size = source.estimate_bytes("train")
    assert size < _join(tmp_path, source=source).estimate_bytes("train") < 10 * size


@pytest.mark.parametrize("clicks", ["csv", "arrow"])
def test_the_default_of_a_key_in_the_spec_is_looked_up_in_training_too(clicks, tmp_path):
    features, defaults = {**SPEC.features, "user": "int64"}, {**SPEC.defaults, "user": 3}
    known = dataclasses.replace(SPEC, features=features, defaults=defaults)
    settings = {"cache": clicks == "csv", "batch_size": COUNT, "shuffle_buffer": 1}
    data = _pipe(_join(tmp_path, clicks, "arrow"), known, **settings)
    (absent, *_), (trained, *_) = _list(data), _list(data, 1)
    assert absent["user"] == 3 and absent["age"] == USERS[3]["age"]
    assert repr(trained) == repr(absent)


def test_blocks_beyond_memory_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_ROWS_OF_CALL", 40)
    source = _join(tmp_path, "windows", "arrow")
    assert source.list_blocks("train", SPEC) is not None and source.list_rows("train") is None
    seen = _list(_pipe(source, batch_size=10), 12)
    assert len({row["x"] for row in seen}) > 50


def test_passes_over_a_few_fields_read_no_table_without_need(tmp_path):
    source = _join(tmp_path)
    (tmp_path / "items.jsonl").unlink()
    few = spec.Spec(features={"age": "float32"}, labels={"tier": "int64"}, defaults={"age": "nan"})
    rows = _list(_pipe(source, few))
    assert [row["tier"] for row in rows] == [row["tier"] for row in _expect()]
    own = spec.Spec(features={"x": "int64"}, labels={})
    (tmp_path / "users.csv").unlink()
    assert [row["x"] for row in _list(_pipe(dataclasses.replace(source), own))] == list(
        range(COUNT)
    )


def test_a_key_may_be_a_feature_or_a_whole_number(tmp_path):
    keyed = dataclasses.replace(
        SPEC,
        features={**SPEC.features, "user": "int64", "item": "string"},
        defaults={**SPEC.defaults, "user": -5, "item": ""},
    )
    for kind in ("csv", "arrow"):
        rows = _list(_pipe(_join(tmp_path, kind, "arrow"), keyed))
        clicks = list(_list_clicks())
        assert [row["user"] for row in rows] == [
            -5 if click["user"] is None else click["user"] for click in clicks
        ]
        plain = [{name: row[name] for name in SPEC.fields} for row in rows]
        assert _same(plain, _clean(_expect()))
    wrong = dataclasses.replace(keyed, features={**keyed.features, "user": "float32"})
    with pytest.raises(checks.UserError, match="'user' must be a text or a whole number"):
        _list(_pipe(_join(tmp_path), wrong))


def test_joins_nest_in_other_sources(tmp_path):
    source, expected = _join(tmp_path), _clean(_expect())
    part = subset.Subset(source=source, share=0.5)
    rows = _list(_pipe(part))
    assert 15 < len(rows) < 45 and _same(rows, [expected[row["x"]] for row in rows])
    cached = _list(_pipe(part, cache=True), 20)
    assert {row["x"] for row in cached} == {row["x"] for row in rows}
    mixed = mixture.Mixture(sources={"clicks": source})
    assert _same(_list(_pipe(mixed)), expected)
    counted = numbered.number_rows(_pipe(source))
    assert [row[numbered.ROW] for row in _list(counted)] == list(range(COUNT))
    held = in_memory.InMemory(source, SPEC)
    assert _same(_list(_pipe(held)), expected)


def test_a_table_joins_by_a_field_of_another(tmp_path):
    (tmp_path / "countries.csv").write_text("country,area\nc0,1.5\nc1,2.5\n")
    countries = csv.Csv(files={"all": "countries.csv"}, data_dir=str(tmp_path))
    outer = joined.Joined(
        source=_join(tmp_path),
        tables={"country": countries},
        fields={"country": ["area"]},
        table_split="all",
    )
    wide = dataclasses.replace(
        SPEC,
        features={**SPEC.features, "area": "float32"},
        defaults={**SPEC.defaults, "area": 0.0},
    )
    areas = [row["area"] for row in _list(_pipe(outer, wide))]
    known = {"c0": 1.5, "c1": 2.5}
    assert areas == [known.get(row["country"], 0.0) for row in _expect()]


def test_workers_read_their_rows_of_the_same_join(tmp_path):
    data = _pipe(_join(tmp_path), cache=True, batch_size=6)
    whole = _list(data, 20)
    parts = [_list(data, 20, num_shards=2, shard=shard, batch_size=3) for shard in range(2)]
    assert sorted(map(_sort, itertools.chain(*parts))) == sorted(map(_sort, whole))
    anew = _pipe(_join(tmp_path), cache=True, batch_size=6)
    assert repr(_list(anew, 5, start_step=13)) == repr(whole[78:108])


def test_absent_keys_are_counted(tmp_path):
    source = _join(tmp_path)
    lines = chosen_rows.describe_left_out(source, "train")
    clicks = list(_list_clicks())
    for line, key, known in zip(lines, ("user", "item"), (USERS, ITEMS), strict=True):
        absent = sum(click[key] not in known for click in clicks)
        assert line.startswith(f"Joined.tables[{key!r}] lacks the {key!r} of {absent} of 60 rows (")
    within = subset.Subset(source=source, share=0.5, held_out={"other": 0.5})
    assert chosen_rows.describe_left_out(within, "other") == lines
    mixed = mixture.Mixture(sources={"clicks": source})
    for split in ("train", "clicks/train"):
        assert chosen_rows.describe_left_out(mixed, split) == lines
    users = (tmp_path / "users.csv").read_text()
    (tmp_path / "users.csv").write_text(users.replace(".0;", "u;"))
    message = r"tables\['user'\] must hold keys of the split 'train'.*None of 60 rows has"
    with pytest.raises(checks.UserError, match=message):
        chosen_rows.describe_left_out(dataclasses.replace(source), "train")


@pytest.mark.parametrize("clicks", ["csv", "arrow", "windows", "frame"])
def test_an_absent_key_without_a_default_is_an_error_that_names_the_row(clicks, tmp_path):
    strict = dataclasses.replace(SPEC, defaults={"country": "none", "sizes": -7, "price": -1.0})
    source = _join(tmp_path, clicks, "arrow")
    data = _pipe(source, strict, cache=clicks == "csv")
    problems = [row for _, row in source.scan("train", strict) if isinstance(row, str)]
    assert len(problems) == sum(click["user"] not in USERS for click in _list_clicks())
    expected = "Joined.tables['user'] lacks the key, and field 'age' has no default"
    assert all(expected in problem for problem in problems)
    try:
        for _ in data.dataset("train", training=True, seed=1).take(10):
            pass
        pytest.fail("an absent key was taken")
    except checks.UserError as error:
        assert expected in str(error) and "line 2" in str(error)
    except tf.errors.InvalidArgumentError as error:
        problem = data.diagnose(error, "train")
        assert expected in problem and ("row 0" in problem or "line 2" in problem)


def test_mistakes_are_one_line(tmp_path):
    source = _join(tmp_path)

    with pytest.raises(
        checks.UserError, match="Joined.fields must be one of user, item, got 'usr'"
    ):
        dataclasses.replace(source, fields={"usr": ["age"]})
    with pytest.raises(checks.UserError, match="name the fields of the table by 'item'"):
        dataclasses.replace(source, fields={"user": ["age"]})
    with pytest.raises(checks.UserError, match="Joined.fields .*'age'"):
        dataclasses.replace(source, fields={"user": ["age"], "item": ["price", "age"]})
    with pytest.raises(checks.UserError, match="leave out keys"):
        dataclasses.replace(source, fields={"user": ["age", "item"], "item": ["price"]})
    with pytest.raises(checks.UserError, match="be a table, neither a mixture"):
        mixed = mixture.Mixture(sources={"a": source.source})
        dataclasses.replace(source, tables={**source.tables, "user": mixed})
    with pytest.raises(checks.UserError, match="hold Mixture directly"):
        _pipe(dataclasses.replace(source, source=mixture.Mixture(sources={"a": source.source})))
    few = {"user": ["age"], "item": ["price"]}
    with pytest.raises(checks.UserError, match="country.*Joined.fields says which fields lie in a"):
        _list(_pipe(dataclasses.replace(source, fields=few)))
    wrong = {**FIELDS, "user": [*FIELDS["user"], "x"]}
    with pytest.raises(checks.UserError, match=r"name fields that the source lacks, got 'x'"):
        _list(_pipe(dataclasses.replace(source, fields=wrong)))
    with pytest.raises(
        checks.UserError, match=r"Joined.tables\['user'\]: .*split must be one of train"
    ):
        _list(_pipe(dataclasses.replace(source, table_split="tran")))


@pytest.mark.parametrize("users", ["csv", "arrow"])
def test_a_key_stands_once_in_a_table(users, tmp_path):
    source = _join(tmp_path, users=users)
    if users == "csv":
        with open(tmp_path / "users.csv", "a") as file:
            file.write("7;1;c;;1|2;1;k\n")
    else:
        table = parquet.read_table(tmp_path / "users.parquet")
        parquet.write_table(
            pa.concat_tables([table, table.slice(2, 1)]), tmp_path / "users.parquet"
        )
    message = r"Joined.tables\['user'\] must have one row for each 'user', got .rows 2 and 8 of .7"
    with pytest.raises(checks.UserError, match=message):
        _list(_pipe(dataclasses.replace(source)))


def test_a_bad_row_of_a_table_is_named(tmp_path):
    source = _join(tmp_path)
    with open(tmp_path / "users.csv", "a") as file:
        file.write("9;old;c;;1|2;1;k\n")
    message = (
        r"Joined.tables\['user'\]: .*users.csv line 10: field 'age' must be float32, got 'old'"
    )
    with pytest.raises(checks.UserError, match=message):
        _list(_pipe(source))


def test_rows_of_a_table_without_a_key_join_nothing(tmp_path):
    source = _join(tmp_path)
    with open(tmp_path / "users.csv", "a") as file:
        file.write(";1;c;;1|2;1;k\n;2;c;;1|2;1;k\n")
    assert _same(_list(_pipe(source)), _clean(_expect()))


def test_files_and_frames_within_are_known(tmp_path):
    source = _join(tmp_path)
    names = {path.rpartition("/")[2] for path in files.named_by(source, "train")}
    assert names == {"clicks.csv", "users.csv", "items.jsonl"}
    users = {name: [row[name] for row in USERS.values()] for name in USERS[0]}
    users["user"] = [str(number) for number in USERS]
    framed = dataclasses.replace(
        source,
        source=_write_clicks(tmp_path, "frame"),
        tables={**source.tables, "user": frames.Frames(splits={"train": users})},
    )
    stored = frames.store(framed, SPEC, str(tmp_path / "stored"))
    assert _same(_list(_pipe(stored)), _clean(_expect()))
    assert frames.store(source, SPEC, str(tmp_path / "stored")) == source


def test_rows_by_number_are_looked_up_once(tmp_path, monkeypatch):
    source = _join(tmp_path, "arrow")
    looked_up, read = [], joined.Joined._read_rows

    def count(self, split, key_spec, *others):
        looked_up.extend(key_spec.fields)
        return read(self, split, key_spec, *others)

    monkeypatch.setattr(joined.Joined, "_read_rows", count)
    part = subset.Subset(source=source, share=0.5)
    inner = dataclasses.replace(source, source=subset.Subset(source=source.source, share=0.5))
    expected = _clean(_expect())
    both = ["item", "user"]
    for each, expected_keys in ((source, both), (part, []), (inner, both)):
        looked_up.clear()
        rows = _list(_pipe(each), 30)
        assert _same(rows, [expected[row["x"]] for row in rows]) and len(rows) == 210
        assert sorted(looked_up) == expected_keys


@pytest.mark.parametrize("kind", ["csv", "arrow"])
def test_a_table_serves_two_roles(kind, tmp_path):
    (tmp_path / "sales.csv").write_text("x,buyer,seller,y\n0,1,2,0\n1,2,1,1\n2,9,3,0\n")
    table = _write_users(tmp_path, kind)
    roles = {
        role: dataclasses.replace(table, rename={role: "user", f"{role}_age": "age"})
        for role in ("buyer", "seller")
    }
    source = joined.Joined(
        source=csv.Csv(files={"train": "sales.csv"}, data_dir=str(tmp_path)),
        tables=roles,
        fields={role: [f"{role}_age"] for role in roles},
    )
    fields = spec.Spec(
        features={"x": "int64", "buyer_age": "float32", "seller_age": "float32"},
        labels={"y": "int64"},
        defaults={"buyer_age": -1.0},
    )
    ages = [(row["buyer_age"], row["seller_age"]) for row in _list(_pipe(source, fields))]
    assert ages == [(20.5, 21.0), (21.0, 20.5), (-1.0, 21.5)]
