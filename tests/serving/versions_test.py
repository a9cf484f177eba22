import os
import time

import pytest

from mtl.serving import versions


def publish(folder, **settings):
    with versions.create_version(str(folder)) as version:
        written = os.path.join(version.partial, "model")
        os.mkdir(written)
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


def test_a_version_that_is_in_use_stays(tmp_path):
    first = int(os.path.basename(publish(tmp_path)))
    for _ in range(3):
        publish(tmp_path, keep=1, kept=first)
    assert versions.list_versions(str(tmp_path)) == [first, first + 3]


def test_what_is_not_published_leaves_no_trace(tmp_path):
    with pytest.raises(KeyboardInterrupt), versions.create_version(str(tmp_path)) as version:
        assert not os.path.basename(version.partial).isdigit()
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_what_a_killed_run_left_is_removed_once_it_is_old(tmp_path):
    for name, age in ((".partial-old", 7200), (".partial-new", 60)):
        (tmp_path / name).mkdir()
        then = time.time() - age
        os.utime(tmp_path / name, (then, then))
    publish(tmp_path)
    assert not (tmp_path / ".partial-old").exists()
    assert (tmp_path / ".partial-new").exists()


def test_no_folder_has_no_versions(tmp_path):
    assert versions.list_versions(str(tmp_path / "nowhere")) == []
