"""Places in code: short where they lie below the current folder."""

from mtl.tools.debugging import origin


def test_paths_are_relative_to_the_current_folder_and_whole_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    inside, outside = tmp_path / "here" / "a" / "own.py", tmp_path / "there.py"
    assert origin._shorten(str(inside)) == "a/own.py"
    assert origin._shorten(str(outside)) == str(outside)
    assert origin._shorten(origin.__file__) == "mtl/tools/debugging/origin.py"
