"""Opens TensorBoard on a finished run in Chromium: every panel shows its data.

It needs Chromium, such as Debian's, and the package playwright, which drives it; without them it is
skipped.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import time

import pytest

from tests import tiny
from tests.tools.tensorboard import shown_run

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_SECS = 60
# Panels are web components, some within frames: all that is drawn lies in shadow roots.
_LOOK = """() => {
  const seen = {text: '', paths: 0, images: []};
  const walk = (node) => {
    if (['STYLE', 'SCRIPT', 'TEMPLATE', 'NOSCRIPT'].includes(node.nodeName)) return;
    if (node.nodeType === Node.TEXT_NODE) seen.text += node.data.trim() + '\\n';
    if (node.nodeName === 'path' && (node.getAttribute('d') || '').length > 40) seen.paths += 1;
    if (node.nodeName === 'IMG' && node.naturalWidth) seen.images.push(node.naturalWidth);
    if (node.shadowRoot) walk(node.shadowRoot);
    if (node.nodeName === 'IFRAME' && node.contentDocument) walk(node.contentDocument);
    node.childNodes.forEach(walk);
  };
  walk(document.body);
  return seen;
}"""

_METADATA = "data/plugin/projector/metadata?run=.&name=features/categorical_word/embedding"

# {panel: (what it says, how many lines it draws at least)}.
PANELS = {
    "timeseries": (["activations", "activations/network/trunk"], 1),
    "scalars": (["dead_units/network/trunk/hidden_0", "gradient_norm", "sign"], 8),
    "custom_scalars": (
        ["all tasks", "auc", "norm of the gradient", "sign/auc (eval)", "size/loss (.)"],
        20,
    ),
    "histograms": (["activations/network/trunk/hidden_0", "clipped_gradients", "updates"], 20),
    "distributions": (["activations/network/trunk/hidden_0", "task_gradients", "weights"], 20),
    "images": (["confusion/sign", "predictions/image"], 0),
    "text": (shown_run.CONFIG.splitlines(), 0),
    "pr_curves": (["kind/0", "kind/2", "sign/pr_curves", "step 60"], 4),
    "hparams": (["model.update.optimizer.learning_rate", "Pipeline", "sign auc", "size rmse"], 0),
    "projector": (["features/categorical_word/embedding", "Points:"], 0),
    "graphs": (["features", "network", "head", "loss", "balancing", "update"], 3),
}


@contextlib.contextmanager
def serving(folder):
    """Yield the address of a TensorBoard that shows a folder."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder)]
    log = folder.parent / "tensorboard.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--port", "0", "--host", "localhost"], stdout=file, stderr=file
        )
    try:
        found, end = None, time.time() + _SECS
        while found is None and time.time() < end and process.poll() is None:
            time.sleep(0.5)
            found = re.search(r"http://localhost:\d+/", log.read_text())
        assert found, log.read_text()
        yield found.group()
    finally:
        process.terminate()
        process.wait()


def look(page, told, paths):
    """Wait for all texts and paths, up to a limit; return the page's content and missing texts."""
    end = time.time() + _SECS
    while True:
        seen = page.evaluate(_LOOK)
        lacking = [text for text in told if text not in seen["text"]]
        if (not lacking and seen["paths"] >= paths) or time.time() > end:
            return seen, lacking
        page.wait_for_timeout(500)


def test_every_panel_shows_its_data(tmp_path):
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    run = shown_run.train(tmp_path / "run")
    wrong, errors = {}, []
    with serving(run) as address, sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"a text of the run ran: {dialog.message}"))
        for panel, (told, paths) in PANELS.items():
            page.goto(f"{address}#{panel}")
            page.reload()
            seen, lacking = look(page, told, paths)
            if lacking or seen["paths"] < paths:
                wrong[panel] = (lacking, seen["paths"])
            if panel == "images":
                page.wait_for_timeout(2000)
                assert len(page.evaluate(_LOOK)["images"]) == 3
        told = {"metric": {"tag": "evaluation/sign/auc"}, "includeInResult": True}
        asked = {"allowedStatuses": ["STATUS_SUCCESS"], "colParams": [told], "sliceSize": 9}
        address_of = f"{address}data/plugin/hparams/session_groups"
        (session,) = page.request.post(address_of, data=asked).json()["sessionGroups"]
        names = page.request.get(f"{address}{_METADATA}").text().splitlines()
        browser.close()
    assert not wrong
    assert not errors
    metrics = tiny.scalars(run / "eval")
    named = {value["name"]["tag"]: value for value in session["metricValues"]}
    metric = named["evaluation/sign/auc"]
    assert metric["trainingStep"] == 60
    assert metric["value"] == pytest.approx(metrics[60, "sign/auc"], abs=1e-6)
    assert sorted(names) == ["(unknown 0)", "blue", "green", "red"]
