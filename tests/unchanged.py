"""Shows that a change of structure changed no run: names, shapes, weights, metrics and exports.

python -m tests.unchanged record before                  # at the revision before the change
python -m tests.unchanged record after --start before    # behind it, from the same initial weights
python -m tests.unchanged compare before after

A record trains every shipped experiment whose data are at hand for 20 steps, with an evaluation
and an export, and each feature of `tests.pairs` for 4. Weights are compared to the bit if the
graph of the training has the same ops, and else to 1e-6.
"""

import argparse
import hashlib
import json
import logging
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from mtl import checks, verbs
from mtl.configs import config
from tests import pairs, tiny

_ROOT = pathlib.Path(__file__).parents[1]
_DATA = pathlib.Path(os.environ.get("MTL_DATA_DIR", _ROOT.parent / "shared" / "data"))
_STEPS = ["Run.train_steps = 20", "Run.checkpoint_steps = 20", "Run.summary_steps = 10"]
_PLACES = [f'{name}_dir = "{_DATA / name}"' for name in ("adult", "census_income", "mnist")]


def main() -> None:
    """Parse flags, and record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs_of = parser.add_subparsers(dest="verb", required=True)
    recorded = verbs_of.add_parser("record")
    recorded.add_argument("folder", type=pathlib.Path)
    recorded.add_argument("--start", type=pathlib.Path, help="a record whose weights runs start at")
    recorded.add_argument("--only", default="", help="a part of the name of a run")
    compared = verbs_of.add_parser("compare")
    compared.add_argument("before", type=pathlib.Path)
    compared.add_argument("after", type=pathlib.Path)
    options = parser.parse_args()
    if options.verb == "record":
        record(options.folder, options.start, options.only)
    elif not compare(options.before, options.after):
        sys.exit(1)


def record(folder: pathlib.Path, start: pathlib.Path | None, only: str) -> None:
    """Train what the folder does not hold yet, and write what came of it."""
    logging.disable(logging.WARNING)
    for name, make in _list_runs():
        place = folder / name.replace("/", "_").replace(" ", "_")
        if only not in name or (place / "facts.json").exists():
            continue
        shutil.rmtree(place, ignore_errors=True)
        try:
            made = make()
            if start is not None and (start / place.name / "run").exists():
                place.mkdir(parents=True)
                tiny.copy_until(start / place.name / "run", place / "run", 0)
            _train(made, place / "run", is_feature=name.startswith("feature "))
        except checks.UserError as error:
            print(f"{name}: not run: {error}", file=sys.stderr)
            continue
        (place / "facts.json").write_text(json.dumps(_describe(place / "run"), indent=1))
        print(f"{name}: recorded", file=sys.stderr)
        tf.compat.v1.reset_default_graph()


def _list_runs() -> Iterator[tuple[str, Any]]:
    """Yield (name, function that makes an experiment) of all runs."""
    for path in sorted((_ROOT / "gin_configs" / "experiments").rglob("*.gin")):
        text = path.read_text()
        places = [place for place in _PLACES if place.partition(" ")[0] in _read_all(text)]
        yield (
            path.stem,
            lambda path=path, places=places: config.load([str(path)], [*_STEPS, *places]),
        )
    for feature in pairs.FEATURES:
        yield f"feature {feature.name}", lambda feature=feature: pairs.make([feature])


def _read_all(text: str) -> str:
    """Return a gin file with the files that it includes."""
    lines = [line.split('"')[1] for line in text.splitlines() if line.startswith("include ")]
    return "\n".join([text, *(_read_all((_ROOT / line).read_text()) for line in lines)])


def _train(made: Any, folder: pathlib.Path, is_feature: bool) -> None:
    if is_feature:
        tiny.train(made, folder)
    else:
        verbs.train(made, str(folder))


def _describe(folder: pathlib.Path) -> dict[str, Any]:
    """Return the parts of a run that are compared."""
    latest = tf.train.latest_checkpoint(str(folder))
    meta = tf.compat.v1.MetaGraphDef()
    meta.ParseFromString(pathlib.Path(f"{latest}.meta").read_bytes())
    ops = sorted((n.name, n.op, list(n.input), n.device) for n in meta.graph_def.node)
    metrics = folder / "metrics.jsonl"
    lines = map(json.loads, metrics.read_text().splitlines()) if metrics.exists() else ()
    return {
        "ops": len(ops),
        "graph": hashlib.sha256(json.dumps(ops).encode()).hexdigest(),
        "variables": {n: list(v.shape) for n, v in sorted(tiny.variables(folder).items())},
        "metrics": [{n: v for n, v in line.items() if "secs" not in n} for line in lines],
        "signatures": _describe_exports(folder),
    }


def _describe_exports(folder: pathlib.Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.glob("export/**/saved_model.pb")):
        parsed = saved_model_pb2.SavedModel()
        parsed.ParseFromString(path.read_bytes())
        kind = path.relative_to(folder).parts[1]
        for name, signature in sorted(parsed.meta_graphs[0].signature_def.items()):
            for way, tensors in (("in", signature.inputs), ("out", signature.outputs)):
                for key, tensor in sorted(tensors.items()):
                    shape = [axis.size for axis in tensor.tensor_shape.dim]
                    found[f"{kind} {name} {way} {key}"] = [int(tensor.dtype), shape]
    return found


def compare(before: pathlib.Path, after: pathlib.Path) -> bool:
    """Print how the runs of two records differ; return whether none does."""
    names = sorted(path.parent.name for path in before.glob("*/facts.json"))
    is_same = True
    for name in names:
        told = _compare_run(before / name, after / name)
        is_same = is_same and not told[1:]
        print(f"{name}: {'; '.join(told)}")
    return is_same


def _compare_run(before: pathlib.Path, after: pathlib.Path) -> list[str]:
    """Return whether the graph is the same, and then a text for each thing that differs."""
    if not (after / "facts.json").exists():
        return ["", "was not run"]
    own, other = (json.loads((place / "facts.json").read_text()) for place in (before, after))
    has_same_graph = own["graph"] == other["graph"]
    told = ["same graph" if has_same_graph else f"{own['ops']} ops, now {other['ops']}"]
    told += [f"{key} differ" for key in ("variables", "signatures") if own[key] != other[key]]
    if own["variables"] != other["variables"]:
        changed = own["variables"].keys() ^ other["variables"].keys()
        return [*told, f"variables of one alone: {sorted(changed)[:5]}"]
    expected, found = tiny.variables(before / "run"), tiny.variables(after / "run")
    tolerance = 0 if has_same_graph else 1e-6
    for name, value in expected.items():
        if value.dtype.kind == "f":
            far = ~np.isclose(found[name], value, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            far = found[name] != value
        if far.any():
            told.append(f"{name} is off in {far.sum()} of {far.size}")
    return [*told, *_compare_metrics(own["metrics"], other["metrics"])]


def _compare_metrics(own: list[dict[str, Any]], other: list[dict[str, Any]]) -> Iterator[str]:
    if [line.keys() for line in own] != [line.keys() for line in other]:
        yield "metrics have other names"
        return
    for line, now in zip(own, other, strict=True):
        for name, value in line.items():
            is_number = isinstance(value, float) and isinstance(now[name], float)
            fits = np.isclose(value, now[name], rtol=1e-5, equal_nan=True) if is_number else True
            if not fits:
                yield f"{name} was {value}, is {now[name]}"


if __name__ == "__main__":
    main()
