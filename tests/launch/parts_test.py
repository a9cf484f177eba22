import pathlib
import subprocess
import sys

import pytest

from launch import parts
from mtl import checks, networks
from mtl.configs import run_settings, trust
from mtl.networks import gates

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGES = {"networks": "network_parts.md", "heads": "head_parts.md"}


@pytest.mark.medium
@pytest.mark.parametrize("package", PAGES)
def test_a_page_is_what_the_command_writes(package):
    assert parts.write_page(package) == (DOCS / PAGES[package]).read_text()


@pytest.mark.medium
def test_the_page_of_all_parts_is_what_the_command_writes():
    assert parts.write_index() == (DOCS / "parts.md").read_text()


@pytest.mark.medium
def test_every_setting_of_a_network_or_head_has_a_meaning():
    for kind in parts.find_parts():
        if kind.__module__.startswith(("mtl.networks.", "mtl.heads.")):
            for setting in parts.list_settings(kind):
                assert setting.meaning, f"{kind.__name__}.{setting.name}"


def test_names_are_those_that_gin_files_bind():
    assert run_settings.gin_name(networks.MMoE) == "networks.MMoE"
    assert run_settings.gin_name(gates.Softmax) == "gates.Softmax"


def test_settings_have_their_defaults():
    found = {setting.name: setting for setting in parts.list_settings(networks.OMoE)}
    assert found["num_experts"].default == "8"
    assert found["expert"].default == "required"
    assert found["gate"].default == "@gates.Softmax()"
    assert (found["num_experts"].kind, found["tower"].kind) == ("int, at least 1", "Trunk | None")
    assert found["expert"].meaning.startswith("the trunk of each expert")


@pytest.mark.medium
def test_a_part_is_described():
    (kind,) = parts.choose_parts(["PLE"])
    text = parts.describe_part(kind)
    assert text.startswith("networks.PLE\n\nProgressive layered extraction")
    assert "  num_specific: int, at least 1 = 2\n      the number of experts of a task" in text


@pytest.mark.medium
def test_a_misspelt_name_is_one_line():
    with pytest.raises(checks.UserError, match="got 'MMoEE'. Did you mean 'MMoE'"):
        parts.choose_parts(["MMoEE"])


OURS = '''
"""Towers of ours."""
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deep:
    """A deep tower.

    A. Author, "Towers", 2020, arXiv:2001.00001.

    Attributes:
      layers: how wide each is.
    """

    layers: Sequence[int] = (4,)


def make_tower(width: int = 3, depth=2):
    """A tower by a function."""
'''


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """Yield the folder of a user's package, ours_of_parts, with a module towers."""
    package = tmp_path / "ours_of_parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "towers.py").write_text(OURS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "ours_of_parts"]:
        del sys.modules[name]


def test_parts_of_a_package_of_ones_own_are_listed(ours):
    line = "towers.Deep                          A deep tower. [arXiv:2001.00001]"
    assert parts.list_parts("ours_of_parts") == line
    (ours / "broken.py").write_text("import towers_that_are_not_there\n")
    with pytest.raises(checks.UserError, match="importing 'ours_of_parts.broken' failed"):
        parts.list_parts("ours_of_parts")


@pytest.mark.medium
def test_parts_of_ones_own_are_found_by_name(ours):
    (found,) = parts.choose_parts(["Deep"], ["ours_of_parts"])
    assert parts.choose_parts(["ours_of_parts.towers.Deep"]) == [found]
    text = parts.describe_part(found)
    assert "  layers: Sequence[int] = (4,)\n      how wide each is." in text
    (function,) = parts.choose_parts(["ours_of_parts.towers.make_tower"])
    assert parts.describe_part(function).endswith("  width: int = 3\n  depth = 2")
    with pytest.raises(checks.UserError, match="got 'Deap'. Did you mean 'Deep'"):
        parts.choose_parts(["ours_of_parts.towers.Deap"])
    with pytest.raises(checks.UserError, match="'ours_of_parts.towers' is not in --trusted"):
        parts.choose_parts(["ours_of_parts.towers.Deep"], trusted=trust.Trusted([]))


@pytest.mark.slow
def test_the_command_lists_all_parts_and_refuses_others():
    def run(*names):
        command = [sys.executable, "-m", "launch.parts", *names]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    listed = run()
    assert listed.returncode == 0
    assert {"networks.MMoE", "heads.Binary", "csv.Csv"} <= {
        line.split()[0] for line in listed.stdout.splitlines()
    }
    wrong = run("MMoEE")
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].endswith("Did you mean 'MMoE'?")
