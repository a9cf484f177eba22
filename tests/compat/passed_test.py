"""The note that the tests of `mtl.compat` passed holds until code changes, not comments."""

from tests.compat import passed

_SOURCE = '"""A module."""\n\ndef add(a, b):\n    """Add numbers."""\n    return a + b\n'


def test_comments_and_docstrings_leave_the_note_valid():
    reworded = "# A comment.\n" + _SOURCE.replace("Add numbers", "Return the sum")
    assert passed.read_code(reworded) == passed.read_code(_SOURCE)


def test_other_code_makes_the_note_invalid():
    assert passed.read_code(_SOURCE.replace("a + b", "a - b")) != passed.read_code(_SOURCE)


def test_the_note_covers_the_package_and_its_tests():
    files = passed.list_files()
    assert {"mtl/compat/keras.py", "mtl/deferred.py", "tests/compat/toy.py"} <= files
