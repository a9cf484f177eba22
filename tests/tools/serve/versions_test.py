"""Versions come, go and break while a server answers; every request meets a whole version."""

import logging
import shutil
import threading
import time

import pytest

from mtl import checks
from mtl.tools.serve import failures, finding, models, versions
from tests.tools.serve.conftest import NAME, serving, wait_until
from tests.tools.serve.rest_test import as_json


class Fake:
    """A model that notes when it is closed."""

    def __init__(self, number):
        self.number, self.is_closed = number, False

    def close(self):
        self.is_closed = True


class Folder:
    """A folder of versions, some of which cannot be loaded."""

    def __init__(self, *numbers):
        self.numbers, self.broken, self.made, self.tries = set(numbers), set(), {}, []

    def find(self):
        return {number: str(number) for number in sorted(self.numbers)}

    def load(self, number, path):
        self.tries.append(number)
        if number in self.broken:
            raise ValueError(f"no graph in {path}")
        return self.made.setdefault(number, Fake(number))


def hold(folder, **settings):
    return versions.Versions(folder.find, folder.load, **settings)


def test_the_newest_is_served_and_earlier_ones_are_closed():
    folder = Folder(1, 3)
    held = hold(folder)
    assert held.load_first().number == 3 and folder.tries == [3]
    folder.numbers |= {7}
    held.poll()
    assert held.newest == 7 and folder.made[3].is_closed and not folder.made[7].is_closed
    with (
        pytest.raises(failures.RequestError, match="version 3 is not loaded, only 7"),
        held.lease(3),
    ):
        pass


def test_some_versions_stay_and_can_be_named():
    folder = Folder(1)
    held = hold(folder, keep=2)
    held.load_first()
    for number in (2, 3):
        folder.numbers |= {number}
        held.poll()
    assert folder.made[1].is_closed and not folder.made[2].is_closed
    with held.lease(2) as model:
        assert model.number == 2
    assert {n: own.name for n, own in held.list_states().items()} == dict.fromkeys(
        (3, 2), "AVAILABLE"
    )


class _Watch:
    """A lock that notes, whenever it is taken, whether a version that was found has a state."""

    def __init__(self, held, number):
        self._lock, self._held, self._number = held._lock, held, number
        self.states, self._is_looking = [], False

    def __enter__(self):
        if not self._is_looking:
            self._is_looking = True
            state = self._held.list_states().get(self._number)
            self.states.append(state.name if state else None)
            self._is_looking = False
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


@pytest.mark.parametrize("broken, ended", [(set(), "AVAILABLE"), ({2}, "END")])
def test_a_version_has_a_state_from_the_start_of_its_loading_on(broken, ended):
    folder = Folder(1)
    held = hold(folder, keep=2)
    held.load_first()
    folder.numbers, folder.broken = {1, 2}, broken
    held._lock = watch = _Watch(held, 2)
    held.poll()
    assert watch.states[0] == "LOADING" and watch.states[-1] == ended and None not in watch.states
    assert {n: state.name for n, state in held.select_states(2).items()} == {2: ended}
    with pytest.raises(failures.RequestError, match="version 4 is not loaded, only"):
        held.select_states(4)


def test_a_version_stays_open_for_its_requests():
    folder = Folder(1)
    held = hold(folder)
    held.load_first()
    with held.lease(None) as model, held.hold(model):
        folder.numbers = {2}
        held.poll()
        assert held.newest == 2 and not model.is_closed
        assert held.list_states()[1].name == "UNLOADING"
    assert model.is_closed and list(held.list_states()) == [2]


def test_a_broken_version_is_left_and_tried_again(caplog, monkeypatch):
    logging.getLogger("mtl").propagate = True
    folder = Folder(1)
    held = hold(folder)
    held.load_first()
    folder.numbers |= {2}
    folder.broken |= {2}
    for _ in range(3):
        held.poll()
    assert held.newest == 1 and folder.tries == [1, 2]  # Not at every look.
    assert [r.getMessage() for r in caplog.records] == [
        "Version 2 cannot be loaded: no graph in 2; version 1 stays in use."
    ]
    assert held.list_states()[2] == versions.State("END", "no graph in 2")
    folder.broken.clear()
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    held.poll()
    assert held.newest == 2


def test_a_server_starts_with_the_newest_version_that_loads():
    folder = Folder(1, 2, 3)
    folder.broken |= {3}
    held = hold(folder)
    assert held.load_first().number == 2 and folder.tries == [3, 2]
    held.poll()
    assert held.newest == 2 and folder.tries == [3, 2]


def test_a_version_must_load():
    folder = Folder(1, 2)
    folder.broken |= {1, 2}
    with pytest.raises(
        checks.UserError,
        match="version 2: no graph in 2; version 1: no graph in 1. Choose another version with",
    ):
        hold(folder).load_first()


def test_a_deleted_version_rolls_back_to_the_one_before(caplog):
    logging.getLogger("mtl").propagate = True
    folder = Folder(1, 2)
    held = hold(folder, keep=2)
    held.load_first()
    folder.numbers = {1}
    held.poll()
    assert held.newest == 1 and folder.made[2].is_closed
    folder.numbers = set()
    for _ in range(2):
        held.poll()
    assert held.newest == 1 and not folder.made[1].is_closed
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == ["The folder of version 1 is gone; the server uses the version in memory."]


def test_a_pinned_version_stays():
    folder = Folder(1, 2)
    held = hold(folder, only=1)
    assert held.load_first().number == 1
    folder.numbers |= {3}
    held.poll()
    assert held.newest == 1 and folder.tries == [1]


@pytest.mark.medium
def test_requests_meet_whole_versions_while_these_come_and_go(base, tmp_path, rows, expected):
    wanted = expected("raw/price", {n: v[:1] for n, v in rows["raw/price"].items()})["value"][0]
    shutil.copytree(base / "7", tmp_path / "7")
    seen, wrong, is_over = set(), [], threading.Event()
    columns = {name: as_json(value[:1]) for name, value in rows["raw"].items()}
    body = {"signature_name": "raw/price", "inputs": columns}

    def ask(served):
        while not is_over.is_set():
            status = served.ask(f"/v1/models/{NAME}").json["model_version_status"]
            seen.update(own["version"] for own in status if own["state"] == "AVAILABLE")
            reply = served.predict(**body)
            found = reply.json["outputs"]["value"][0] if reply.status == 200 else None
            if found is None or abs(found - wanted) > 1e-4:
                wrong.append(reply)

    with serving(tmp_path, keep_versions=1) as served:
        threads = [threading.Thread(target=ask, args=[served]) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for number in (8, 9):
                # In the way of an export: elsewhere, then renamed.
                shutil.copytree(base / "7", tmp_path / ".partial")
                (tmp_path / ".partial").rename(tmp_path / str(number))
                wait_until(lambda number=number: served.held.newest == number)
                shutil.rmtree(tmp_path / str(number - 1))
            # Half a version, as of a copy in work: it is never served.
            (tmp_path / "10").mkdir()
            shutil.copy(base / "7" / "saved_model.pb", tmp_path / "10")
            wait_until(lambda: served.held.list_states().get(10, ("",))[0] == "END")
            assert served.held.newest == 9
            wait_until(lambda: "9" in seen)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    assert not wrong, wrong[0]
    assert {"7", "8", "9"} >= seen


@pytest.mark.medium
def test_a_damaged_version_is_refused(base, tmp_path):
    shutil.copytree(base / "7", tmp_path / "7")
    with (tmp_path / "7" / "saved_model.pb").open("ab") as file:
        file.write(b"x")
    exports = finding.Exports([str(tmp_path)])
    held = versions.Versions(exports.list_versions, versions.make_loader(NAME))
    with pytest.raises(
        checks.UserError, match="no version can be served: version 7: .*its checksum differs"
    ):
        held.load_first()


@pytest.mark.medium
def test_versions_are_found_in_all_folders_of_a_run(base, tmp_path):
    run = tmp_path / "run"
    for kind, number in (("latest", 5), ("best", 9), ("manual", 7)):
        shutil.copytree(base / "7", run / "export" / kind / str(number))
    (run / "export" / "best" / "11").mkdir()
    assert list(finding.Exports.of_run(str(run)).list_versions()) == [5, 7, 9]
    assert finding.Exports.of_run(str(run)).choose_version(None) == 9
    assert finding.Exports.of_run(str(run), "latest").choose_version(None) == 5
    with pytest.raises(
        checks.UserError, match="--version must be a version in .*, got 8. .*5, 7, 9"
    ):
        finding.Exports.of_run(str(run)).choose_version(8)
    folder = str(run / "export" / "best")
    assert finding.Exports.of_run(None, folder).choose_version(None) == 9


@pytest.mark.parametrize(
    "model_dir, export, says",
    [
        (None, None, "--model_dir must name the folder of a run"),
        ("absent", None, "--model_dir must name the folder of a run, got 'absent'"),
        (None, "lates", "--export must be latest, .*got 'lates'. Did you mean 'latest'"),
        ("x", ".", "--model_dir must be left out if --export is a folder"),
        (None, "some/where", "--export must be latest, best, manual or a folder of versions"),
        (None, "best", "--model_dir must name the folder of a run, got None"),
    ],
)
def test_no_exports(model_dir, export, says):
    with pytest.raises(checks.UserError, match=says):
        finding.Exports.of_run(model_dir, export)


def test_a_folder_without_versions_says_what_it_is(tmp_path):
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "saved_model.pb").touch()
    for folder, says in (
        (tmp_path / "12", f"set --export {tmp_path} --version 12"),
        (tmp_path / "13", "launch.train exports after each evaluation"),
    ):
        folder.mkdir(exist_ok=True)
        with pytest.raises(checks.UserError, match=says):
            finding.Exports([str(folder)]).choose_version(None)
    (tmp_path / "13" / "config.gin").touch()
    with pytest.raises(checks.UserError, match="set --model_dir"):
        finding.Exports([str(tmp_path / "13")]).choose_version(None)


@pytest.mark.medium
def test_a_model_keeps_few_prepared_calls(base, rows, monkeypatch):
    monkeypatch.setattr(models, "_MOST_CALLS", 3)
    model = models.Model.load(NAME, 7, str(base / "7"))
    for name in model.signatures["raw"].outputs:
        model.run("raw", rows["raw"], [name])
        assert len(model._calls) <= 3
    model.close()
