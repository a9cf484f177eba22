"""Requests to `launch.serve` with a mistake or two: the predictions of the rows, or one clear line.

A server may answer 500 to none of them, and must serve the next client.
"""

import copy
import json

import numpy as np
import pytest

from mtl import checks
from tests.fuzz import cases
from tests.serving.conftest import export, made, make, vocabulary  # noqa: F401
from tests.tools.serve.conftest import NAME, base, expected, rows, served  # noqa: F401
from tests.tools.serve.open_inference_test import tensors
from tests.tools.serve.rest_test import EXAMPLE, as_json, as_rows

pytestmark = pytest.mark.medium
ODD = (
    *(None, True, 0, -1, 0.5, 2**31, 2**70, 10**400, 1e39, float("nan"), float("inf"), "", "x"),
    *([], {}, [[]], [[[]]], [1, [2]], [None], {"b64": "YQ=="}, {"b64": "Y"}, {"b64": 3}, {"x": 1}),
    *("\ud800", "raw", "serving_default", "é", "a\nb", [1, 2, 3], ["a", "b"], [[1, 2, 3]] * 2),
)
SPLICE = (b"[", b"]", b"{", b"}", b",", b'"', b"NaN", b"null", b"1e999", b"\xff", b"\x00", b"0")


def documents(rows):  # noqa: F811
    """{path: a good request of two rows}."""
    inputs = {name: value[:2] for name, value in rows["raw"].items()}
    columns = {name: as_json(value) for name, value in inputs.items()}
    predict = f"/v1/models/{NAME}:predict"
    return [
        (predict, {"signature_name": "raw", "inputs": columns}),
        (predict, {"signature_name": "raw", "instances": as_rows(inputs)}),
        (f"/v2/models/{NAME}/infer", {"id": "1", "inputs": tensors(inputs), "outputs": []}),
        (f"/v1/models/{NAME}:regress", {"signature_name": "price/regress", "examples": [EXAMPLE]}),
    ]


def places(document):
    """(holder, key) of every value within."""
    found, left = [], [document]
    while left:
        holder = left.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                left.append(holder[key])
    return found


def changed(draw, document):
    document = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 2))):
        holder, key = draw.choice(places(document) or [(document, "x")])
        how = draw.randrange(4)
        if how == 0 and key in (holder if isinstance(holder, dict) else range(len(holder))):
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[draw.choice(("x", "word", "tags/length", "signature_name", "a b"))] = (
                copy.deepcopy(draw.choice(ODD))
            )
        elif isinstance(holder, dict) or key < len(holder):
            holder[key] = copy.deepcopy(draw.choice(ODD))
    return document


def test_requests(served, rows, expected):  # noqa: F811
    wanted = expected("raw", {n: v[:2] for n, v in rows["raw"].items()})["price/value"]
    good = documents(rows)

    def case(draw):
        path, document = draw.choice(good)
        body = json.dumps(changed(draw, document)).encode()
        if draw.random() < 0.3:
            body = cases.damaged(draw, json.dumps(document).encode(), SPLICE)
        reply = served.ask(path, body)
        assert reply.status in (200, 400), reply
        if reply.status == 200:
            assert json.loads(reply.body)
            return "right"
        cases.refused(checks.UserError(reply.error))
        return "refused"

    outcomes = cases.run("served", 300, case)
    assert outcomes["right"] and outcomes["refused"]
    reply = served.ask(*good[0])
    np.testing.assert_allclose(reply.json["outputs"]["price/value"], wanted, rtol=1e-6)
