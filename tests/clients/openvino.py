"""Exports in OpenVINO: `portable/ids` and its encoder answer as the checkpoint does.

    python -m tests.clients.openvino

It builds an environment with `openvino` and without TensorFlow where there is none. OpenVINO
converts `portable/ids` of three models there, and computes in float32:

- the trained table of tests/clients/odd_export.py, which gets the requests that rows can hold;
- all kinds of ids, and numbers alone, of tests/tools/runtimes/portable_test.py, row by row.
"""

import dataclasses
import pathlib
import pickle
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtl import features
from mtl.serving import rows
from tests.clients import environments, odd_export
from tests.tools.runtimes import portable_test

_SCRIPT = pathlib.Path(__file__).with_name("openvino_predict.py")
_TOLERANCE = 1e-5
# OpenVINO holds int64 as int32 and compares it as float32, as docs/serving.md says.
_EXACT = -(2**24), 2**24
# OpenVINO adds in another order, so that a sum near the limit of float32 may become infinite.
_FURTHEST = 1e38


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A request, and the prediction of the checkpoint for it."""

    name: str
    columns: Mapping[str, Any]
    expected: Mapping[str, np.ndarray]


def build(env: str) -> str:
    """Return the Python of an environment with OpenVINO.

    Raises:
      LackingError: the package is not to be had.
    """
    return environments.build(env, packages=["openvino==2026.*"], with_project=False)


def try_table(python: str, folder: pathlib.Path, tally: odd_export.Tally) -> str:
    """Compare the answers to odd requests, and return the version of OpenVINO."""
    export = odd_export.make(folder, portable=True, outputs=(), passthrough=())
    cases = []
    for request in odd_export.list_requests():
        if request.examples is None:
            expected = export.answer(request, "serving_default")
            assert expected is not None, request.name
            cases.append(
                Case(name=request.name, columns=request.write_columns(), expected=expected)
            )
    return compare(python, export.path, cases, tally)


def try_untrained(
    python: str, folder: pathlib.Path, columns: list[Any], tally: odd_export.Tally
) -> None:
    """Compare the predictions for each row of a model that was not trained."""
    folder.mkdir()
    drawn = portable_test.untrained(folder / "run", columns).values
    ids = {"id": np.clip(drawn["id"], *_EXACT)} if "id" in drawn else {}
    if "ids" in drawn:
        ids["ids"] = [list(np.clip(own, *_EXACT)) for own in drawn["ids"]]
    model = portable_test.untrained(folder / "run", columns, values=ids)
    held_out = rows.read_rows(model.dataset, model.spec, portable_test.COUNT)
    expected = {
        name: value.astype(object) if value.dtype.kind == "S" else value
        for name, value in model.predictions().items()
    }
    case = Case(name="rows", columns=held_out.values, expected=expected)
    compare(python, model.export(folder / "export"), [case], tally)


def compare(python: str, export: str, cases: list[Case], tally: odd_export.Tally) -> str:
    """Fail unless OpenVINO gives what is expected, and return its version."""
    # Isolated, since the folder of the script has a module of the same name as the package.
    command = [python, "-I", str(_SCRIPT), f"{export}/portable/ids"]
    told = pickle.loads(
        environments.ask_by_files(command, pickle.dumps([case.columns for case in cases]))
    )
    for case, answered in zip(cases, told["answers"], strict=True):
        assert not isinstance(answered, str), f"{case.name}: {answered}"
        found = {name: _cap(answered[name]) for name in case.expected}
        expected = {name: _cap(value) for name, value in case.expected.items()}
        tally.compare(case.name, found, expected)
    return told["version"]


def _cap(value: np.ndarray) -> np.ndarray:
    """Return an output with infinite in place of huge numbers."""
    if value.dtype.kind != "f":
        return value
    return np.where(np.abs(value) > _FURTHEST, np.copysign(np.float32(np.inf), value), value)


def main() -> None:
    """Build, export and compare, and print how many answers are equal."""
    options = environments.make_parser(__doc__, "openvino").parse_args()
    with environments.skipping():
        python = build(options.env)
    tally = odd_export.Tally(tolerance=_TOLERANCE)
    numbers = features.Numeric(names=["x"], normalization="none", missing_flags=True)
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        version = try_table(python, folder / "table", tally)
        try_untrained(python, folder / "ids", portable_test.list_columns(), tally)
        try_untrained(python, folder / "numbers", [numbers], tally)
    print(f"OpenVINO {version}: {tally}")


if __name__ == "__main__":
    sys.exit(main())
