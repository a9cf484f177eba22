"""Every verb refuses a damaged file of a run with a one-line error."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from mtl import checks, features, verbs
from mtl.checkpoints import given_files
from mtl.tools.scoring import local
from mtl.variables import freezing, masks
from tests import tiny

pytestmark = pytest.mark.slow  # tests/fuzz/run_files_test.py tries what reads each file.
WORDS = ("red", "green", "blue")


def _flip(data):
    place = data.index(b"e")  # Of a word.
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGE = {
    "cut": lambda data: data[: len(data) // 2],
    "zeroed": lambda data: b"\0" * len(data),
    "flipped": _flip,
    "empty": lambda data: b"",
}


def _made(directory, train_steps=2):
    """Words of a fitted vocabulary and of a given one, and a mask of a user's."""
    columns = [
        features.Numeric(names=["x"]),
        features.Categorical(names=["word"], dimension=2),
        features.Categorical(
            names=["word"], dimension=2, vocabulary=str(directory / "words.txt"), prefix="given"
        ),
    ]
    made = tiny.make(columns=columns, train_steps=train_steps, checkpoint_steps=2)
    mask = masks.FromFile(path=str(directory / "mask.npy"))
    frozen = freezing.Freezing(entries={"^network/trunk/hidden_0/kernel$": mask})
    return dataclasses.replace(made, model=dataclasses.replace(made.model, freezing=frozen))


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("trained")
    (directory / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    np.save(directory / "mask.npy", np.arange(8) % 2)
    verbs.train(_made(directory), str(directory / "run"))
    return directory


@pytest.fixture(name="copy")
def _copy(trained, tmp_path):
    return pathlib.Path(shutil.copytree(trained, tmp_path / "copy"))


def _verbs(directory, train_steps=4):
    made, run = _made(directory, train_steps), str(directory / "run")
    return {
        "evaluate": lambda: verbs.evaluate(made, run),
        "predict": lambda: list(verbs.predict(made, run)),
        "export": lambda: verbs.export(made, run, str(directory / "export")),
        "train": lambda: verbs.train(made, run),
    }


FITTED = "run/statistics/vocabulary_categorical_word.txt"


@pytest.mark.parametrize(
    ("file", "how", "verbs"),
    [
        *((FITTED, how, ("evaluate", "predict", "export", "train")) for how in DAMAGE),
        *(("words.txt", how, ("evaluate", "predict", "export", "train")) for how in DAMAGE),
        ("run/statistics/statistics.json", "flipped", ("evaluate", "predict", "export", "train")),
        ("run/statistics/statistics.json", "cut", ("evaluate", "train")),
        ("run/given_files.json", "flipped", ("evaluate", "train")),
        ("run/row_names.json", "flipped", ("evaluate", "predict", "export", "train")),
        ("run/best/best.json", "flipped", ("train",)),
        ("run/best/best.json", "cut", ("train",)),
        ("mask.npy", "flipped", ("train",)),
    ],
)
def test_damage_is_one_line_of_every_verb(copy, file, how, verbs):
    path = copy / file
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    for verb in verbs:
        with pytest.raises(checks.UserError) as error:
            _verbs(copy)[verb]()
        line = str(error.value)
        assert str(path) in line and "\n" not in line, verb
        assert "damaged" in line or "has changed: name or put back the old file" in line, (
            verb,
            line,
        )
    assert not (copy / "export").exists()


def test_a_file_that_is_gone(copy):
    (copy / FITTED).unlink()
    with pytest.raises(
        checks.UserError, match="vocabulary_categorical_word.txt is gone. Copy the file"
    ):
        _verbs(copy)["evaluate"]()


def test_the_state_of_the_input(copy):
    for path in (copy / "run" / "input").glob("*.data-*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(
        checks.UserError, match="input/.* is damaged: .* delete the files of this step: "
    ):
        _verbs(copy)["train"]()


def test_the_files_of_an_export(copy):
    (version,) = sorted((copy / "run" / "export" / "latest").iterdir())[-1:]
    local.SavedModel(str(version))
    (words, *_) = sorted((version / "assets").iterdir())
    for path in (words, version / "saved_model.pb"):
        data = path.read_bytes()
        path.write_bytes(_flip(data))
        with pytest.raises(checks.UserError, match=f"{path.name} is damaged: .* Export it again"):
            local.SavedModel(str(version))
        path.write_bytes(data)


def test_a_run_of_an_earlier_version_goes_on_and_gets_its_checksums(copy):
    """An earlier version wrote no checksums, and no record of the user's files."""
    run = copy / "run"
    files = ["statistics/statistics.json", "row_names.json", "best/best.json"]
    for name in files:
        (run / name).write_text(json.dumps(_bare(json.loads((run / name).read_text()))))
    (run / "given_files.json").unlink()
    _verbs(copy)["evaluate"]()
    assert "checksum" not in json.loads((run / files[0]).read_text())
    _verbs(copy)["train"]()
    for name in [*files, "given_files.json"]:
        assert "checksum" in json.loads((run / name).read_text()), name
    # From here on damage is found.
    (copy / FITTED).write_bytes(_flip((copy / FITTED).read_bytes()))
    with pytest.raises(checks.UserError, match="is damaged"):
        _verbs(copy)["evaluate"]()


def _bare(entry):
    if not isinstance(entry, dict):
        return entry
    return {key: _bare(value) for key, value in entry.items() if key != "checksum"}


def test_a_vocabulary_of_an_earlier_version_has_its_length_at_least(copy):
    path = copy / "run/statistics/statistics.json"
    path.write_text(json.dumps(_bare(json.loads(path.read_text()))))
    (copy / FITTED).write_text("red\n")
    with pytest.raises(checks.UserError, match="is damaged: it holds 1 of 3 categories"):
        _verbs(copy)["evaluate"]()


def test_a_new_run_may_change_its_files_and_a_file_may_move(copy):
    path = copy / "words.txt"
    path.write_text("teal\n" + path.read_text())
    (copy / "fresh").mkdir()
    given_files.keep_checksums(_made(copy).model.training_files, str(copy / "fresh"), is_new=True)
    record = copy / "fresh" / "given_files.json"
    assert set(json.loads(record.read_text())) == {
        "features/given_word",
        "Freezing.entries['^network/trunk/hidden_0/kernel$']",
        "checksum",
    }
    moved = copy / "elsewhere"
    moved.mkdir()
    for name in ("words.txt", "mask.npy"):
        (copy / name).rename(moved / name)
    given_files.check_unchanged(_made(moved).model.training_files, str(copy / "fresh"))
    with pytest.raises(checks.UserError, match="has changed: name or put back the old file"):
        verbs.evaluate(_made(moved), str(copy / "run"))
