"""A file that is locked, abandoned, or cannot be removed."""

import errno
import os

from mtl.files import in_work


def test_a_file_in_work_is_kept_and_an_abandoned_one_is_removed(tmp_path):
    path, descriptor = in_work.create(lambda: str(tmp_path / "file"))
    assert in_work.is_abandoned(path) is False
    assert in_work.remove_abandoned(path) is False and os.path.exists(path)
    os.close(descriptor)
    assert in_work.is_abandoned(path) is True and os.path.exists(path)
    assert in_work.remove_abandoned(path) is True and not os.path.exists(path)
    assert in_work.is_abandoned(path) is None


def test_a_file_that_cannot_be_removed_does_not_count_as_in_work(tmp_path, monkeypatch):
    path, descriptor = in_work.create(lambda: str(tmp_path / "file"))
    os.close(descriptor)

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "remove", refuse)
    assert in_work.remove_abandoned(path) is None
