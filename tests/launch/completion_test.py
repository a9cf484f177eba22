"""A shell completes the verbs, and the flags that the help of each launcher lists."""

import re
import shutil
import subprocess

import pytest

from launch import completion, console
from mtl import checks


@pytest.mark.medium
@pytest.mark.parametrize("verb", ["train", "predict", "new", "parts"])
def test_flags_are_those_of_the_help(verb, launch):
    told = launch(verb, "--help").out
    own = re.findall(
        r"^  (--\w+)", told.partition("Flags:")[2] or told.partition("options:")[2], re.M
    )
    assert set(completion.list_flags(verb)) == {*own, "--help"} and len(own) > 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mtl", "tr"], ["train"]),
        (["mtl", "train", "--dry"], ["--dry_run"]),
        (["mtl", "predict", "--output", "x.csv", "--check"], ["--checkpoint"]),
        (["mtl", "clip_audit", "--check"], ["--checkpoint"]),
        (["mtl", "train", "--gin_file", "x"], []),
        (["mtl", "trian", "--dry"], []),
    ],
)
def test_bash_completes_verbs_and_flags_and_leaves_the_rest_to_files(words, expected):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    set_words = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
    show = 'printf "%s\\n" "${COMPREPLY[@]}"; complete -p mtl'
    script = "\n".join([completion.write_script("bash"), set_words, "_mtl", show])
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True)
    *found, last = done.stdout.splitlines()
    assert [word for word in found if word] == expected and not done.stderr
    assert last == "complete -o default -F _mtl mtl"


def test_every_verb_and_shell_has_its_part():
    script = completion.write_script("zsh")
    assert script.startswith("autoload ") and script.count(") words=") == len(console.VERBS)
    with pytest.raises(checks.UserError, match="must be one of bash, zsh, got 'bsh'"):
        completion.write_script("bsh")
