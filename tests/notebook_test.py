"""The notebook in `examples/` runs from its first cell to the last, as in Jupyter."""

import ast
import json
import pathlib

import pytest
import tensorflow as tf

import mtl

PATH = pathlib.Path(__file__).resolve().parents[1] / "examples" / "two_tasks.ipynb"


def _run(source, names):
    """Run a cell, and return the value of its last expression, which Jupyter shows."""
    statements = ast.parse(source).body
    last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
    exec(compile(ast.Module(statements, []), str(PATH), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(PATH), "eval"), names) if last else None


@pytest.mark.slow
def test_its_cells_train_explain_and_export_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(PATH.read_text())["cells"] if cell["cell_type"] == "code"]
    names = {}
    shown = [_run("".join(cell["source"]), names) for cell in cells]
    assert all(not cell["outputs"] for cell in cells)  # Outputs would change with each version.
    assert "<svg" in names["model"]._repr_html_()
    assert "mean radius" in capsys.readouterr().out
    (scores,) = [value for value in shown if isinstance(value, dict)]
    assert scores["auc of malignant"] > 0.97 and scores["r2 of largest_area"] > 0.75
    (pages,) = [value for value in shown if isinstance(value, tuple)]
    assert all(pathlib.Path(page).stat().st_size > 10_000 for page in pages)
    row = names["test"].iloc[:1]
    served = tf.saved_model.load(shown[-1]).signatures["raw"]
    found = served(**{name: tf.constant(row[name].astype("float32")) for name in names["means"]})
    expected = names["predictions"]["malignant/probability"].iloc[0]
    assert float(found["malignant/probability"].numpy().ravel()[0]) == pytest.approx(expected, 1e-5)
    assert mtl.load("runs/cells").model_dir
