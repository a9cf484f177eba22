import os
import pathlib
import subprocess
import sys
import time

import pytest

from mtl.checkpoints import leftovers
from mtl.serving import versions


def write_model(version):
    written = pathlib.Path(version.partial, "model")
    written.mkdir()
    (written / "saved_model.pb").touch()
    return str(written)


def publish(folder, **settings):
    with versions.create_version(str(folder)) as version:
        written = write_model(version)
        (folder / "seen").write_text(" ".join(map(str, versions.list_versions(str(folder)))))
        return version.publish(written, **{"keep": 2, **settings})


def test_versions_rise_and_the_newest_stay(tmp_path):
    (tmp_path / "deploy").mkdir()
    before = int(time.time())
    made = [int(os.path.basename(publish(tmp_path))) for _ in range(4)]
    assert made == list(range(made[0], made[0] + 4)) and made[0] >= before
    assert (tmp_path / "seen").read_text() == f"{made[1]} {made[2]}"
    assert versions.list_versions(str(tmp_path)) == made[2:]
    assert sorted(os.listdir(tmp_path)) == [*map(str, made[2:]), "deploy", "seen"]


def test_other_files_with_a_number_as_name_stay(tmp_path):
    for name in ("2020", "2021", "0007"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").touch()
    (tmp_path / "7").touch()
    made = [publish(tmp_path, keep=1) for _ in range(2)]
    names = {"2020", "2021", "0007", "7", "seen", os.path.basename(made[1])}
    assert set(os.listdir(tmp_path)) == names
    assert all((tmp_path / name / "rows.csv").exists() for name in ("2020", "2021", "0007"))


def test_a_version_that_is_in_use_stays(tmp_path):
    first = int(os.path.basename(publish(tmp_path)))
    for _ in range(3):
        publish(tmp_path, keep=1, kept=first)
    assert versions.list_versions(str(tmp_path)) == [first, first + 3]


def test_two_exports_at_once_do_not_meet(tmp_path):
    with versions.create_version(str(tmp_path)) as first:
        written = write_model(first)
        second = int(os.path.basename(publish(tmp_path)))
        third = int(os.path.basename(publish(tmp_path)))
        assert (second, third) == (first.number + 1, first.number + 2)
        first.publish(written, keep=1)
    assert versions.list_versions(str(tmp_path)) == [first.number, third]


def test_what_is_not_published_leaves_no_trace(tmp_path):
    with pytest.raises(KeyboardInterrupt), versions.create_version(str(tmp_path)) as version:
        assert not os.path.basename(version.partial).isdigit()
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def begin(folder, is_killed):
    """Begin a version in a new process; return the process and the folder that it writes."""
    code = (
        "import sys, time\nfrom mtl.serving import versions\n"
        "with versions.create_version(sys.argv[1]) as version:\n"
        "    print(version.partial, flush=True)\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    partial = pathlib.Path(process.stdout.readline().strip())
    if is_killed:
        process.kill()
        process.wait()
    return process, partial


@pytest.mark.slow
def test_what_a_killed_export_left_goes_at_once_and_what_is_in_work_stays(tmp_path):
    working, kept = begin(tmp_path, is_killed=False)
    _, left = begin(tmp_path, is_killed=True)
    try:
        os.utime(kept, (0, 0))  # A clock that jumped.
        assert left.exists()
        publish(tmp_path)
        assert kept.exists() and not left.exists()
    finally:
        working.kill()
        working.wait()


def test_a_start_of_a_training_leaves_the_export_that_is_in_work(tmp_path):
    folder = tmp_path / "export" / "manual"
    with versions.create_version(str(folder)) as version:
        other = folder / ".partial-0"
        other.mkdir()
        assert leftovers.half_written(str(tmp_path)) == [str(other)]
        assert os.path.isdir(version.partial)


def test_what_a_killed_run_of_an_earlier_version_left_is_removed_once_it_is_old(tmp_path):
    for name, age in ((".partial-old", 7200), (".partial-new", 60)):
        (tmp_path / name).mkdir()
        then = time.time() - age
        os.utime(tmp_path / name, (then, then))
    publish(tmp_path)
    assert not (tmp_path / ".partial-old").exists()
    assert (tmp_path / ".partial-new").exists()


def test_no_folder_has_no_versions(tmp_path):
    assert versions.list_versions(str(tmp_path / "nowhere")) == []
