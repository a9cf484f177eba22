import pytest

from mtl import checks
from mtl.checkpoints import given_files


@pytest.fixture(name="words")
def _words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\n")
    given_files.keep_checksums({"features/job": str(path)}, str(tmp_path), is_new=True)
    return path


def test_a_file_must_stay_as_it_was(words, tmp_path):
    files = {"features/job": str(words)}
    given_files.check_unchanged(files, str(tmp_path))
    given_files.keep_checksums(files, str(tmp_path), is_new=False)
    words.write_text("b\na\n")
    for verb in (
        given_files.check_unchanged,
        lambda *args: given_files.keep_checksums(*args, is_new=False),
    ):
        message = (
            "the file of features/job must be as when the run in .* was started, got .*words.t"
        )
        with pytest.raises(checks.UserError, match=message):
            verb(files, str(tmp_path))
    # A new run accepts the files as they are.
    given_files.keep_checksums(files, str(tmp_path), is_new=True)
    given_files.check_unchanged(files, str(tmp_path))


def test_a_file_may_move_and_another_may_come(words, tmp_path):
    moved = words.rename(tmp_path / "moved.txt")
    files = {"features/job": str(moved), "features/place": str(moved)}
    given_files.check_unchanged(files, str(tmp_path))
    given_files.keep_checksums(files, str(tmp_path), is_new=False)
    assert set(given_files.check_unchanged(files, str(tmp_path))) == set(files)


def test_a_run_without_a_record_gets_one_when_it_goes_on(words, tmp_path):
    (tmp_path / given_files.FILE).unlink()
    files = {"features/job": str(words)}
    assert given_files.check_unchanged(files, str(tmp_path)) == {}
    given_files.keep_checksums(files, str(tmp_path), is_new=False)
    assert set(given_files.check_unchanged(files, str(tmp_path))) == {"features/job"}


def test_without_files_nothing_is_written(tmp_path):
    given_files.keep_checksums({}, str(tmp_path), is_new=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / given_files.FILE).write_text("{}")
    given_files.keep_checksums({}, str(tmp_path), is_new=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_is_left_to_who_reads_it(words, tmp_path):
    words.unlink()
    given_files.check_unchanged({"features/job": str(words)}, str(tmp_path))
    given_files.keep_checksums({"features/job": str(words)}, str(tmp_path), is_new=True)
