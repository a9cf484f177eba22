import pathlib
import subprocess
import sys

import pytest

from launch import parts
from mtl import checks, networks
from mtl.networks import gates

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGES = {"networks": "network_parts.md", "heads": "head_parts.md"}


@pytest.mark.medium
@pytest.mark.parametrize("package", PAGES)
def test_a_page_is_what_the_command_writes(package):
    assert parts.write_page(package) == (DOCS / PAGES[package]).read_text()


@pytest.mark.medium
def test_every_setting_of_a_network_or_head_has_a_meaning():
    for kind in parts.find_parts():
        if kind.__module__.startswith(("mtl.networks.", "mtl.heads.")):
            for setting in parts.list_settings(kind):
                assert setting.meaning, f"{kind.__name__}.{setting.name}"


def test_names_are_those_that_gin_files_bind():
    assert parts.gin_name(networks.MMoE) == "networks.MMoE"
    assert parts.gin_name(gates.Softmax) == "gates.Softmax"


def test_settings_have_their_defaults():
    found = {setting.name: setting for setting in parts.list_settings(networks.OMoE)}
    assert found["num_experts"].default == "8"
    assert found["expert"].default == "required"
    assert found["gate"].default == "@gates.Softmax()"
    assert found["expert"].meaning.startswith("built `num_experts` times")


@pytest.mark.medium
def test_a_part_is_described():
    (kind,) = parts.choose_parts(["PLE"])
    text = parts.describe_part(kind)
    assert text.startswith("networks.PLE\n\nProgressive layered extraction")
    assert "  num_specific = 2\n      the experts of a task at each level, at least 1." in text


@pytest.mark.medium
def test_a_misspelt_name_is_one_line():
    with pytest.raises(checks.UserError, match="got 'MMoEE'. Did you mean 'MMoE'"):
        parts.choose_parts(["MMoEE"])


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
