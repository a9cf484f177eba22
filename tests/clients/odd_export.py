"""An export with inputs of every kind, odd requests, and the answers of this process to them.

made = odd_export.make(folder)                         # trains, and exports
for request in odd_export.list_requests():
    expected = made.answer(request, "serving_default")  # {output: array}, None if it is refused

Servers get the same rows as serialized tf.Examples, or as tensors by the signatures `raw`.
"""

import base64
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import experiment, features, heads, model, networks, serving, spec, verbs
from mtl.data import pipeline, source
from mtl.deferred import tf, tf1
from mtl.optimization import optimizers, update
from tests import tiny

NAME = "odd"
RAW = "raw"
SPEC = spec.Spec(
    features={
        "x": ("float32", (3,)),
        "age": "float32",
        "count": "int64",
        "country": "string",
        "tags": ("string", (None,)),
        "items": ("int64", (None,)),
    },
    labels={"sign": "int64", "kind": "string", "size": "float32"},
    defaults={"age": 40.0, "count": 7, "country": "none"},
)
_KINDS = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}
_SERVING = {
    "model_name": NAME,
    "outputs": ("sign/probability", "kind/class"),
    "passthrough": ("age", "count", "country"),
}
_COUNTRIES = np.array(["de", "fr", "日本"], object)
_INT64 = np.iinfo(np.int64)
_FLOAT32 = np.finfo(np.float32)

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Rows for a server; `examples` replaces rows that cannot be written as tensors."""

    name: str
    rows: Sequence[Row] = ()
    examples: Sequence[bytes] | None = None

    def serialize(self) -> list[bytes]:
        """Return serialized tf.Examples [B]."""
        return list(map(_serialize, self.rows)) if self.examples is None else list(self.examples)

    def fill(self) -> "Request":
        """Return the request with a value for every feature that may be missing."""
        default = {**SPEC.defaults, "tags": [], "items": []}
        return dataclasses.replace(self, rows=[{**default, **row} for row in self.rows])

    def write_columns(self) -> dict[str, list]:
        """Return {feature: B values} for the encoder of an export; a missing value is None."""
        return {name: [row.get(name) for row in self.rows] for name in SPEC.features}

    def write_tensors(self) -> dict[str, np.ndarray] | None:
        """Return {raw input: [B, ...]}; None if only some rows have a field of fixed length."""
        if self.examples is not None:
            return None
        tensors: dict[str, np.ndarray] = {}
        for name, field in SPEC.feature_fields.items():
            values = [row.get(name) for row in self.rows]
            dtype = object if field.dtype == "string" else field.dtype
            if all(value is None for value in values) and self.rows:
                continue  # The graph knows a default, or that the lists are empty.
            if field.is_ragged:
                tensors |= _pad(name, [value or [] for value in values], dtype)
            elif any(value is None for value in values):
                return None
            else:
                array = np.array([_encode(value) for value in values], dtype)
                tensors[name] = array.reshape([len(values), *field.shape])
        return tensors


def _encode(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _serialize(row: Row) -> bytes:
    example = tf.train.Example()
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        kind = _KINDS[SPEC.fields[name].dtype]
        getattr(example.features.feature[name], kind).value.extend(map(_encode, values))
    return example.SerializeToString()


def _pad(name: str, lists: Sequence[list], dtype: Any) -> dict[str, np.ndarray]:
    width = max(map(len, lists), default=0)
    padded = np.full([len(lists), width], b"" if dtype is object else 0, dtype)
    for index, values in enumerate(lists):
        padded[index, : len(values)] = list(map(_encode, values))
    return {name: padded, f"{name}/length": np.array(list(map(len, lists)), np.int64)}


def _draw(count: int, seed: int) -> list[Row]:
    """Return plain rows, with every field."""
    random = np.random.default_rng(seed)
    return [
        {
            "x": random.normal(size=3).astype(np.float32).tolist(),
            "age": float(np.float32(random.uniform(18, 90))),
            "count": int(random.integers(0, 5)),
            "country": str(random.choice(_COUNTRIES)),
            "tags": [str(tag) for tag in random.choice(list("abcd"), random.integers(0, 4))],
            "items": random.integers(0, 9, random.integers(0, 4)).tolist(),
        }
        for _ in range(count)
    ]


def list_requests() -> list[Request]:
    """Return plain and odd requests, and such that every server has to refuse."""
    base = _draw(1, seed=4)[0]
    alone = [{"x": row["x"]} for row in _draw(4, seed=5)]
    lists = (([], [3]), (["a"] * 50, []), ([""], [3, 3]), (["a", "", "b"], []))
    texts = ("☃", b"\xff\xfe\x00", "", "long" * 5000, " de", "DE")
    whole = (_INT64.min, _INT64.max, 0, -1, 2**53 + 1, -(2**31) - 1)
    floats = (np.nan, np.inf, -np.inf, -0.0, float(_FLOAT32.smallest_subnormal), 3e38)
    wrong = tf.train.Example()
    wrong.features.feature["x"].int64_list.value.extend([1, 2, 3])
    short = _serialize({"x": [1.0, 2.0]})
    return [
        Request(name="5 rows", rows=_draw(5, seed=6)),
        Request(name="1 row", rows=_draw(1, seed=7)),
        Request(name="0 rows"),
        Request(name="10,000 rows", rows=_draw(10_000, seed=8)),
        Request(name="missing features", rows=alone),
        Request(name="some missing features", rows=[*alone, *_draw(3, seed=9)]),
        Request(name="empty lists", rows=[{**base, "tags": t, "items": n} for t, n in lists]),
        Request(name="only empty lists", rows=[{**base, "tags": [], "items": []}] * 3),
        Request(
            name="unknown texts", rows=[{**base, "country": t, "tags": [t, "a"]} for t in texts]
        ),
        Request(name="int64 limits", rows=[{**base, "count": n, "items": [n, 3]} for n in whole]),
        Request(name="odd floats", rows=[{**base, "age": f, "x": [f, 0.5, 1.0]} for f in floats]),
        Request(name="a malformed example", examples=[b"\xff"]),
        Request(name="a missing required feature", examples=[_serialize({"age": 3.0})]),
        Request(name="a wrong type", examples=[wrong.SerializeToString()]),
        Request(name="a wrong length", examples=[short]),
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """A trained run, its export, and a session of the export in this process."""

    model_dir: str
    path: str
    session: tf1.Session
    signatures: Mapping[str, Any]

    def write_inputs(self, request: Request, signature: str) -> dict[str, np.ndarray] | None:
        """Return the inputs of a signature, {input: array}; None if it cannot take the rows."""
        if signature.split("/")[0] == RAW:
            return request.write_tensors()
        (name,) = self.signatures[signature].inputs
        return {name: np.array(request.serialize(), object)}

    def answer(self, request: Request, signature: str) -> dict[str, np.ndarray] | None:
        """Return the answer of a signature to the tf.Examples of a request; None for a refusal.

        For a signature `raw`, the signature without `raw` answers, so that the answer does not
        depend on how the rows became tensors.
        """
        same = signature.removeprefix(RAW).removeprefix("/") or "serving_default"
        (given,) = self.signatures[same].inputs.values()
        outputs = {name: info.name for name, info in self.signatures[same].outputs.items()}
        examples = np.array(request.serialize(), object)
        try:
            return self.session.run(outputs, {given.name: examples})
        except source.list_refusals():
            return None


def make(folder: pathlib.Path, **settings: Any) -> Export:
    """Train three tasks for some steps, export them, and load the export in this process.

    Args:
      folder: the parent folder of the run.
      **settings: the settings of `serving.Serving`.
    """
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    splits = {"train": _make_table(256, 1), "test": _make_table(64, 2)}
    model_dir = str(folder / "run")
    verbs.train(_describe(splits, settings), model_dir)
    (path,) = (folder / "run" / "export" / "latest").iterdir()
    session = tf1.Session(graph=tf.Graph())
    with session.graph.as_default():
        loaded = tf1.saved_model.load(session, ["serve"], str(path))
    signatures = {n: s for n, s in loaded.signature_def.items() if not n.startswith("__")}
    return Export(model_dir=model_dir, path=str(path), session=session, signatures=signatures)


def _make_table(count: int, seed: int) -> dict[str, Any]:
    rows = _draw(count, seed)
    table: dict[str, Any] = {name: [row[name] for row in rows] for name in SPEC.features}
    for name, field in SPEC.feature_fields.items():
        if not field.is_ragged:
            dtype = object if field.dtype == "string" else field.dtype
            table[name] = np.array(list(map(_encode, table[name])), dtype)
    table["tags"] = [list(map(_encode, tags)) for tags in table["tags"]]
    sign = (table["x"][:, 0] > 0).astype(np.int64)
    kind = np.where(table["count"] > 2, "größer".encode(), b"less").astype(object)
    return {**table, "sign": sign, "kind": kind, "size": np.abs(table["x"]).sum(1)}


def _describe(
    splits: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]
) -> experiment.Experiment:
    categories = ["country", "tags", "items", "count"]
    return experiment.Experiment(
        data=pipeline.Pipeline(source=tiny.Rows(splits=splits), spec=SPEC, batch_size=32),
        model=model.MultiTaskModel(
            columns=[
                features.Numeric(names=["x", "age"]),
                features.Categorical(names=categories, dimension=4),
            ],
            network=networks.SharedBottom(trunk=networks.MLP(layers=[16]), tower=None),
            heads=[
                heads.Binary(name="sign"),
                heads.MultiClass(name="kind", classes=["größer", "less"]),
                heads.Regression(name="size"),
            ],
            update=update.Update(optimizer=optimizers.LazyAdam(learning_rate=0.01)),
        ),
        run=experiment.Run(train_steps=60, checkpoint_steps=60),
        serving=serving.Serving(**{**_SERVING, **settings}),
    )


def write_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return tensors as JSON: base64 of little-endian bytes, or of each text."""
    return {
        name: {
            "dtype": "string" if array.dtype == object else array.dtype.name,
            "shape": list(array.shape),
            "data": [base64.b64encode(text).decode() for text in array.ravel()]
            if array.dtype == object
            else base64.b64encode(array.tobytes()).decode(),
        }
        for name, array in tensors.items()
    }


def read_tensors(described: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors that `write_tensors` has written."""
    tensors = {}
    for name, of in described.items():
        if of["dtype"] == "string":
            array = np.array([base64.b64decode(text) for text in of["data"]], object)
        else:
            array = np.frombuffer(base64.b64decode(of["data"]), of["dtype"])
        tensors[name] = array.reshape(of["shape"])
    return tensors


@dataclasses.dataclass
class Tally:
    """Counts of compared outputs, identical outputs and refusals; `tolerance` is for floats."""

    tolerance: float = 1e-6
    outputs: int = 0
    identical: int = 0
    refused: int = 0
    furthest: float = 0.0

    def compare(
        self,
        where: str,
        answered: Mapping[str, np.ndarray] | None,
        expected: Mapping[str, np.ndarray] | None,
    ) -> None:
        """Fail unless both are refused, or equal: floats within the tolerance, all else exactly."""
        if expected is None or answered is None:
            assert expected is None and answered is None, f"{where}: {answered}, not {expected}"
            self.refused += 1
            return
        assert sorted(answered) == sorted(expected), f"{where}: {sorted(answered)}"
        for name, value in expected.items():
            self._compare_output(f"{where}: {name}", answered[name], value)

    def _compare_output(self, where: str, answered: np.ndarray, expected: np.ndarray) -> None:
        assert answered.shape == expected.shape, f"{where}: {answered.shape} for {expected.shape}"
        assert answered.dtype == expected.dtype, f"{where}: {answered.dtype}"
        self.outputs += 1
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(answered, expected, err_msg=where)
            self.identical += 1
            return
        near = {"rtol": self.tolerance, "atol": self.tolerance}
        np.testing.assert_allclose(answered, expected, **near, err_msg=where)
        if answered.tobytes() == expected.tobytes():
            self.identical += 1
        else:
            with np.errstate(invalid="ignore"):  # Equal infinities.
                distance = np.abs(answered - expected)
            self.furthest = max(self.furthest, float(np.nanmax(distance)))

    def __str__(self) -> str:
        told = f"{self.outputs} outputs, {self.identical} of them equal to the last bit"
        more = f", the others within {self.furthest:.1g}" if self.furthest else ""
        return f"{told}{more}; {self.refused} requests refused on both sides"
