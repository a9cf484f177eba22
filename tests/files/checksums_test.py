import json
import zlib

import pytest

from mtl import checks
from mtl.files import checksums

ENTRIES = {"b": {"n": [1, 2.5, None]}, "a": "\u2028ü\udcff", "c": 1.1e-7, "d": float("inf")}


def test_what_is_written_is_read(tmp_path):
    path = str(tmp_path / "a.json")
    checksums.write_json(path, ENTRIES)
    assert checksums.read_json(path, "Fix.") == ENTRIES
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_any_damage_of_a_file_is_found_or_harmless(tmp_path):
    path = tmp_path / "a.json"
    checksums.write_json(str(path), ENTRIES)
    data = path.read_bytes()
    for place in range(len(data)):
        for damage in (
            data[:place],
            data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],
            data[:place] + b"\0" * (len(data) - place),
        ):
            path.write_bytes(damage)
            try:
                found = checksums.read_json(str(path), "Copy it back.")
            except checks.UserError as error:
                assert str(error).startswith(f"{path} is damaged: ")
                assert str(error).endswith("Copy it back.")
            else:  # White space, or the name of the checksum.
                assert {name: found[name] for name in ENTRIES} == ENTRIES


def test_a_file_without_a_checksum_is_taken_and_can_be_sealed(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ENTRIES))
    assert checksums.read_json(str(path), "Fix.") == ENTRIES
    checksums.seal(str(path), "Fix.")
    assert json.loads(path.read_text())["checksum"].startswith("crc32:")
    assert checksums.read_json(str(path), "Fix.") == ENTRIES
    checksums.seal(str(tmp_path / "absent.json"), "Fix.")
    assert not (tmp_path / "absent.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "\xff"])
def test_what_is_no_object_is_damaged(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(checks.UserError, match="is damaged: it "):
        checksums.read_json(str(path), "Fix.")


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
def test_a_file_is_known_by_its_bytes(tmp_path, size):
    path = tmp_path / "words.txt"
    data = bytes(range(256)) * (size // 256 + 1)
    path.write_bytes(data[:size])
    known = checksums.of_file(str(path))
    assert (
        known == checksums.compute_checksum(data[:size]) == f"crc32:{zlib.crc32(data[:size]):08x}"
    )
    checksums.require(str(path), known, "Fix.")
    checksums.require(str(path), None, "Fix.")
    path.write_bytes(data[: size + 1])
    with pytest.raises(checks.UserError, match="words.txt is damaged: .* Fix."):
        checksums.require(str(path), known, "Fix.")
    path.unlink()
    with pytest.raises(checks.UserError, match="words.txt is gone. Fix."):
        checksums.require(str(path), None, "Fix.")
