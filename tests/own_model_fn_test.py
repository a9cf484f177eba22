"""The program of docs/own_model_fn.md, saved and run as it is printed."""

import importlib
import pathlib

import numpy as np
import pytest

from mtl.tools.clip_audit import visits
from tests import pages, tiny


@pytest.fixture
def shop(tmp_path, monkeypatch):
    (tmp_path / "own_shop.py").write_text(pages.read_block("own_model_fn.md", "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("own_shop")


@pytest.mark.slow
def test_the_page_trains_audits_goes_on_and_exports(shop):
    code = pathlib.Path(shop.__file__).read_text()
    main = code.partition('if __name__ == "__main__":\n')[2]
    said = []
    exec("if True:\n" + main, {**vars(shop), "print": said.append})
    assert tiny.variables("runs/shop")["global_step"] == 60
    assert pathlib.Path(said[0], "saved_model.pb").exists()
    found, batches = visits.read("runs/shop/clip_audit/training")
    np.testing.assert_array_equal(batches["step"], np.arange(60))
    assert len(found["id"]) == 60 * 32 and set(found["id"]) <= set(range(512))
    report = pathlib.Path("runs/shop/clip_audit/training/summary.md").read_text()
    assert "## Task click" in report
    assert "el2n -" in report  # Which only a head knows.
    tags = {tag for _, tag in tiny.scalars("runs/shop")}
    assert {"weight/click", "amount/loss", "gradient_norm", "surgery/conflicts"} <= tags
