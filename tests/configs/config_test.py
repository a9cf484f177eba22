"""The configuration of a run, as it was written."""

import gin
import pytest

from mtl import checks
from mtl.configs import config


@pytest.fixture(name="path")
def _path(tmp_path):
    gin.clear_config()
    gin.parse_config("a = 1\nb = 'ü\u2028'\nc = {'z': 1, 'y': 2}\n")
    config.save(str(tmp_path))
    yield tmp_path / "config.gin"
    gin.clear_config()


def test_it_is_read_as_it_was_written_and_gin_reads_it(path):
    assert config.saved_in(str(path.parent)) == str(path)
    text = gin.config_str()  # The file may order the entries of dictionaries otherwise.
    assert sorted(config.read(str(path))) == sorted(text)
    gin.clear_config()
    gin.parse_config_file(str(path))
    assert gin.config_str() == text


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"\0" * len(data),
        lambda data: data.replace(b"a = 1", b"a = 3"),
        lambda data: data.replace(b"crc32", b"crc33"),
    ],
)
def test_damage_is_refused(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(checks.UserError, match="config.gin is damaged: .* delete its first line"):
        config.saved_in(str(path.parent))


def test_without_its_first_line_it_may_be_changed(path):
    text = path.read_text(encoding="utf-8").split("\n", 1)[1]
    path.write_text(text.replace("a = 1", "a = 2"), encoding="utf-8")
    assert "a = 2" in config.read(config.saved_in(str(path.parent)))
