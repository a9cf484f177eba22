"""Launchers show help and mistakes before they import TensorFlow, which takes seconds."""

import json
import resource
import subprocess
import sys

import pytest

from launch import app, console
from mtl import checks
from tests.launch import conftest, toy

# Each launcher in a fork, as flags can be defined once. Prints its exit code, its output and
# which of the large packages it has imported.
SCRIPT = """
import contextlib, io, json, os, runpy, sys

from launch import app

LARGE = ("tensorflow",)
for line in sys.stdin:
    if os.fork():
        os.wait()
        continue
    module, *sys.argv[1:] = json.loads(line)
    code, output = 0, io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as error:
            code = error.code or 0
    large = [name for name in LARGE if name in sys.modules]
    print(json.dumps([code, output.getvalue(), large]), flush=True)
    os._exit(0)
"""
REFUSED = {
    "syntax": ("train_steps = 20", "train_steps 20", "expected ':' or '='"),
    "setting": ("train_steps = 20", "trainsteps = 20", "Did you mean 'train_steps'?"),
    "part": ("@optimizers.Adam()", "@optimizers.Adm()", "Did you mean 'optimizers.Adam'?"),
    "module": ("import heads\n", "import haeds\n", "Did you mean 'heads'?"),
    "include": ("defaults.gin", "default.gin", "there is no gin file"),
    "unused": ("level/heads.MultiClass.classes", "levl/heads.MultiClass.classes", "is not used"),
}


@pytest.fixture
def say(tmp_path):
    """Runs launchers; [(exit code, what they printed)], once none has imported TensorFlow."""

    def call(*commands):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=tmp_path,
            env=conftest.environment(),
            input="".join(json.dumps(command) + "\n" for command in commands),
            stdout=subprocess.PIPE,
            text=True,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(answers) == len(commands)
        for command, (_, _, large) in zip(commands, answers, strict=True):
            assert not large, command
        return [(code, said) for code, said, _ in answers]

    return call


@pytest.mark.medium
def test_help_and_wrong_flags_need_no_tensorflow(say):
    verbs = console.VERBS
    helps = [[f"launch.{verb}", "--help"] for verb in verbs]
    wrong = [[f"launch.{verb}", "--gin_fiel", "x"] for verb in verbs]
    for (code, said), verb in zip(say(*helps), verbs, strict=True):
        assert code == 0 and f"python -m launch.{verb}" in said
    for code, said in say(*wrong):
        assert code == 2 and said


@pytest.mark.medium
def test_gin_files_are_refused_without_tensorflow(say, tmp_path):
    toy.write(tmp_path)
    for name, (old, new, _) in REFUSED.items():
        (tmp_path / f"{name}.gin").write_text(toy.GIN.replace(old, new))
    files = [["launch.train", "--gin_file", f"{name}.gin"] for name in (*REFUSED, "absent")]
    given = [["launch.train", "--gin_file", "toy.gin", "--gin_param", "Run.trainsteps = 5"]]
    given += [["launch.stages", "--gin_file", "setting.gin", "--model_dir", "run"]]
    given += [["launch.evaluate", "--model_dir", "run"], ["launch.train"]]
    answers = say(*files, *given)
    says = [*(row[2] for row in REFUSED.values()), "there is no gin file", "has no parameter"]
    says += ["has no parameter", "--model_dir must hold", "must be set"]
    for (code, said), part in zip(answers, says, strict=True):
        assert code == 2 and part in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("kilobytes", [0, 1_000_000, 2_500_000])
def test_too_few_addresses_are_refused_before_tensorflow_aborts(kilobytes, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024 * kilobytes, -1))
    says = f"ulimit -v must be unlimited, or at least 2929687.*got {kilobytes}"
    with pytest.raises(checks.UserError, match=says):
        app.load()
    for enough in (3 * 10**9, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, most=enough: (most, -1))
        app._require_addresses()
