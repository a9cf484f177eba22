"""The state of the input, of settings that are written in another way, and of earlier versions."""

import zlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.checkpoints import input_state

tf1 = tf.compat.v1
SETTINGS = {"files": {"train": "a", "test": "b"}, "sizes": [1, 2.0]}
AGAIN = {"sizes": (1.0, 2), "files": {"test": "b", "train": "a"}}
OTHERS = {"files": {"train": "a", "test": "c"}, "sizes": [1, 2]}


class _Session:
    """A session that reads numbers from an input with a watched state."""

    def __init__(self, folder, settings, make=lambda: tf.data.Dataset.range(100), **options):
        self.graph = tf.Graph()
        with self.graph.as_default():
            iterator = tf1.data.make_initializable_iterator(make())
            self.next = iterator.get_next()
            self.state = input_state.InputState(str(folder), settings, **options)
            self.state.watch(iterator)
        self.session = tf1.Session(graph=self.graph)
        self.session.run(iterator.initializer)

    def read(self, count=1):
        return [int(self.session.run(self.next)) for _ in range(count)]

    def save(self, step):
        with self.graph.as_default():
            self.state.save(self.session, step)

    def restore(self, step):
        with self.graph.as_default():
            return self.state.restore(self.session, step)


def _saved(folder, step=5):
    first = _Session(folder, SETTINGS)
    assert first.read(3) == [0, 1, 2]
    first.save(step)
    return first


@pytest.mark.parametrize("settings", [SETTINGS, AGAIN], ids=["as before", "written otherwise"])
def test_an_input_of_the_same_settings_goes_on(tmp_path, settings):
    _saved(tmp_path)
    again = _Session(tmp_path, settings)
    assert again.restore(5)
    assert again.read() == [3]


def test_an_input_of_other_settings_does_not(tmp_path):
    _saved(tmp_path)
    for settings, step in ((OTHERS, 5), (SETTINGS, 6)):
        other = _Session(tmp_path, settings)
        assert not other.restore(step)
        assert other.read() == [0]


def test_an_input_that_is_read_otherwise_starts_anew(tmp_path):
    """Restoring fails halfway, and the restored part must not stay."""

    def cached():
        return tf.data.Dataset.range(100).cache().shuffle(10, seed=1)

    def sliced():
        return tf.data.Dataset.from_tensor_slices(tf.range(100)).shuffle(10, seed=1)

    first = _Session(tmp_path, SETTINGS, cached)
    first.read(30)
    first.save(5)
    other = _Session(tmp_path, SETTINGS, sliced)
    assert not other.restore(5)
    assert sorted(other.read(100)) == list(range(100))


def _rename_as_earlier(folder):
    """Rename saved states as earlier versions did, by a digest of the repr of the settings."""
    digest = f"{zlib.crc32(repr(SETTINGS).encode()):08x}"
    for path in (folder / "input").iterdir():
        prefix, _, rest = path.name.split("-", 2)
        path.rename(path.with_name(f"{prefix}-{digest}-{rest}"))


def test_an_input_that_an_earlier_version_saved_goes_on(tmp_path):
    first = _saved(tmp_path, step=5)
    first.save(7)
    _rename_as_earlier(tmp_path)
    again = _Session(tmp_path, SETTINGS)
    assert again.restore(7)
    assert again.read() == [3]
    again.save(9)
    again.state.keep([7, 9])
    steps = sorted(
        int(path.stem.rpartition("-")[2]) for path in (tmp_path / "input").glob("*.index")
    )
    assert steps == [7, 9]


def test_only_the_states_of_kept_checkpoints_stay(tmp_path):
    first = _saved(tmp_path, step=5)
    for step in (6, 15):
        first.save(step)
    first.state.keep([15, 3])
    assert {path.name for path in (tmp_path / "input").glob("*.index")} == {
        f"{first.state.path(15).rpartition('/')[2]}.index"
    }


def test_a_damaged_input_is_refused_before_tensorflow_sees_it(tmp_path):
    """A length that is damaged ends the process in TensorFlow."""
    _saved(tmp_path)
    (path,) = (tmp_path / "input").glob("*.data-*")
    data = path.read_bytes()
    path.write_bytes(b"\xff" * 9 + data[9:])
    with pytest.raises(checks.UserError, match="is damaged: its checksum differs. Copy the file"):
        _Session(tmp_path, SETTINGS).restore(5)


def test_an_input_without_checksums_goes_on(tmp_path):
    _saved(tmp_path)
    (path,) = (tmp_path / "input").glob("*.checksums")
    path.unlink()
    again = _Session(tmp_path, SETTINGS)
    assert again.restore(5) and again.read() == [3]


def _lines():
    lines = [f"{i}, Private, Bachelors, Married-civ-spouse, United-States" for i in range(500)]
    return tf.data.Dataset.from_tensor_slices(lines).shuffle(400, seed=1)


def _noise():
    draws = np.random.default_rng(1)
    return tf.data.Dataset.from_tensor_slices([draws.bytes(3000) for _ in range(50)]).shuffle(40)


def _read_texts(session, count):
    return [session.session.run(session.next) for _ in range(count)]


def test_buffers_of_text_are_compressed(tmp_path):
    first = _Session(tmp_path, SETTINGS, _lines)
    _read_texts(first, 3)
    first.save(5)
    (path,) = (tmp_path / "input").glob("*.data-*")
    assert path.suffix == ".zlib"
    assert len(zlib.decompress(path.read_bytes())) > 6 * path.stat().st_size
    before = path.read_bytes()
    again = _Session(tmp_path, SETTINGS, _lines)
    assert again.restore(5) and _read_texts(again, 20) == _read_texts(first, 20)
    assert {path.name for path in (tmp_path / "input").glob("*.data-*")} == {path.name}
    assert path.read_bytes() == before


def test_what_does_not_shrink_is_left_as_it_is(tmp_path):
    first = _Session(tmp_path, SETTINGS, _noise)
    _read_texts(first, 3)
    first.save(5)
    (path,) = (tmp_path / "input").glob("*.data-*")
    assert path.suffix != ".zlib"
    assert _Session(tmp_path, SETTINGS, _noise).restore(5)


def test_compressed_data_that_is_cut_off_is_refused(tmp_path):
    first = _Session(tmp_path, SETTINGS, _lines)
    first.save(5)
    (record,) = (tmp_path / "input").glob("*.checksums")
    record.unlink()  # As if its process had been killed before it wrote them.
    (path,) = (tmp_path / "input").glob("*.data-*")
    for data in (path.read_bytes()[:-9], b"no" + path.read_bytes()[2:]):
        path.write_bytes(data)
        with pytest.raises(checks.UserError, match="is damaged: .* Copy the file back, or delete"):
            _Session(tmp_path, SETTINGS, _lines).restore(5)


@pytest.mark.parametrize(
    ("saved", "readers", "step", "count"),
    [(2, 1, 5, 1), (1, 2, 5, 1), (2, 2, 5, 0), (2, 1, 6, 0)],
    ids=["fewer", "more", "as many", "another step"],
)
def test_another_number_of_processes_is_told_if_rows_depend_on_it(
    tmp_path, caplog, saved, readers, step, count
):
    _Session(tmp_path, SETTINGS, readers=saved).save(5)
    again = _Session(
        tmp_path, OTHERS, readers=readers, starts_anywhere=True, depends_on_readers=True
    )
    assert again.restore(step)
    told = [line for line in caplog.messages if line.startswith("The number of processes")]
    assert [line.split(":")[0] for line in told] == [
        f"The number of processes has changed from {saved} to {readers}"
    ] * count
