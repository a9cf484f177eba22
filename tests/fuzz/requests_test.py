"""JSON lines to be predicted: every row as its line says, or one line that names it."""

import gzip
import json
import random
import zlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import json_lines
from mtl.tools import scoring
from mtl.tools.scoring import json_rows
from tests.fuzz import cases, data_test

GOOD = {
    "float32": (0, 1, -2.5, 1e3, True, "4.5", "nan", 2**31, -0.0),
    "int64": (0, 1, -7, 5.0, True, "7", "true", 2**63 - 1, -(2**63)),
    "uint8": (0, 255, 7.0, "3", True),
    "bool": (True, False, 0, 1, "true", 1.0),
    "string": ("a", "é", "\u2028x", "\x00y", "", "a\nb", "\U0001f600"),
}
ODD = (
    *(None, [], {}, [[]], [None], {"a": 1}, "", "x", " ", "NaN", 1.5, -1, 256, 2**63, True, "1|2"),
    *(
        [1],
        [1, 2],
        ["a", 1],
        [[1, 2], [3, 4]],
        [[1], [2, 3]],
        "\ud800",
        "nan",
        [True, 1.5],
        [[[1]]],
    ),
)
NUMBERS = (1e39, -1e300, 2**70, 10**400, float("inf"), float("nan"), *data_test.NUMBERS)
WEIRD = ODD + NUMBERS
SPLICE = (b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\n", b"null", b"\xff", b"\xef\xbb\xbf")


class _Model:
    """Predicts what tells examples apart."""

    identity, digest = "fake", ""

    def __call__(self, examples):
        return {"m/crc": np.int64([zlib.crc32(example) for example in map(bytes, examples)])}


def _value(draw: random.Random, field: spec.Field, odd: float):
    if draw.random() < odd:
        return draw.choice(WEIRD)
    pool = GOOD[field.dtype]
    pool = pool if draw.random() < 0.3 else [v for v in pool if type(v) is type(pool[0])]
    if not field.shape:
        return draw.choice(pool)
    count = draw.choice((0, 1, 3)) if field.is_ragged else field.size
    values = [draw.choice(pool) for _ in range(count)]
    return [values[:2], values[2:]] if count == 4 and draw.random() < 0.3 else values


def _text(draw: random.Random, made: spec.Spec) -> bytes:
    odd = draw.choice((0, 0, 0.02))
    lines = []
    for number in range(draw.choice((1, 4, 12))):
        row = {"id": draw.choice((number, f"r{number}", [number], {"a": None}))}
        row |= {n: _value(draw, f, odd) for n, f in made.feature_fields.items()}
        for counts, field in made.counted.items():
            if isinstance(row[field], list) and draw.random() < 0.9:
                row[field] = [row[field][:1], [], row[field][1:]][: draw.choice((0, 1, 2, 3))]
                row[counts] = list(map(len, row[field]))
            if draw.random() < 0.7:
                del row[counts]
        if draw.random() < odd:
            del row[draw.choice(sorted(row))]
        lines.append(json.dumps(row, ensure_ascii=draw.random() < 0.7 or odd > 0))
    end = draw.choice(("\n", "\r\n", "\n\n"))
    data = (end.join(lines) + draw.choice(("", "\n"))).encode()
    return cases.damaged(draw, data, SPLICE) if draw.random() < 0.3 else data


def _expected(data: bytes, made: spec.Spec) -> list[dict]:
    """Return {id, values} of each line by the slow reader; raise ValueError for a bad line."""
    rows = []
    for line in data.split(b"\n"):
        if line.strip():
            row = json_lines.parse_object(line)
            for counts, field in made.counted.items():
                told = row.pop(counts, None)
                json_lines.read_value(made.feature_fields[field], row)
                row[counts] = [len(item) for item in row.get(field) or []]
                if told not in (None, row[counts]):
                    raise ValueError
            values = {n: json_lines.read_value(f, row) for n, f in made.feature_fields.items()}
            for weights, name in made.weighted.items():
                if len(values[weights]) != len(values[name]):
                    raise ValueError
            rows.append({"id": json_rows._kept("id", row), "values": values})
    return rows


def _examples_of(made: spec.Spec, examples) -> list[dict]:
    return data_test._rows([made.parse(tf.constant(list(map(bytes, examples))), with_labels=False)])


@pytest.mark.medium
def test_json_lines(tmp_path):
    def case(draw):
        made = data_test._spec(draw)
        data, path = _text(draw, made), tmp_path / draw.choice(("x.jsonl", "x.jsonl.gz"))
        packed = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
        if path.suffix == ".gz" and draw.random() < 0.1:
            packed = cases.damaged(draw, packed)
        path.write_bytes(packed)
        reader = scoring.Reader(spec=made, batch_size=draw.choice((1, 5, 64)), keep=["id"])
        output = tmp_path / "out.jsonl"
        try:
            scoring.score_shards(
                scoring.plan_shards([str(path)], str(output)), reader, _Model(), concurrency=2
            )
        except checks.UserError as error:
            line = cases.refused(error)
            assert str(path) in line, line
            assert not output.exists()
            is_damaged = path.suffix == ".gz" and packed != gzip.compress(data, mtime=0)
            assert is_damaged or _is_bad(data, made), line
            return "refused"
        written = [json.loads(line) for line in output.read_bytes().splitlines()]
        output.unlink()
        expected = _expected(gzip.decompress(packed) if path.suffix == ".gz" else data, made)
        parsed = [reader.parse(chunk) for chunk in reader.chunks([str(path)]) if chunk.rows]
        examples = [example for batch in parsed for example in batch.examples]
        assert [row["id"] for row in written] == [row["id"] for row in expected]
        crcs = _Model()(examples)["m/crc"].tolist()
        assert [row["m/crc"] for row in written] == crcs
        for found, row in zip(_examples_of(made, examples), expected, strict=True):
            differ = [n for n in found if not data_test._same(found[n], row["values"][n])]
            assert not differ, [(name, found[name], row["values"][name]) for name in differ]
        return "right"

    outcomes = cases.run("json lines", 60, case)
    assert outcomes["right"] and outcomes["refused"]


def _is_bad(data: bytes, made: spec.Spec) -> bool:
    """Return True if the slow reader refuses the lines as well, or if there are none."""
    try:
        return not _expected(data, made)
    except ValueError:
        return True
