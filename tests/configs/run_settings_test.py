"""Each setting of a run is shown with its origin: a file, include, parameter or default."""

import pytest

from mtl import checks
from mtl.configs import config, run_settings
from tests.launch import toy


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """{setting: (value, origin)} of toy.gin with further arguments."""
    toy.write(tmp_path)
    monkeypatch.chdir(tmp_path)

    def read(*args, **kwargs):
        text = run_settings.describe_run(["toy.gin"], *args, **kwargs)
        told = [line.partition(" = ") for line in text.splitlines() if line]
        pairs = {name: rest.rpartition("  # ") for name, _, rest in told}
        assert len(pairs) == len(told)
        return {name: (value.strip(), origin) for name, (value, _, origin) in pairs.items()}

    return read


def test_values_come_from_files_includes_parameters_and_defaults(lines):
    found = lines(["Run.seed = 7", "data_dir = 'elsewhere'"])
    number = toy.line_of
    assert found["--model_dir"] == ("runs/toy", "default")
    assert found["experiment.Run.seed"] == ("7", "--gin_param 'Run.seed = 7'")
    steps = number("experiment.Run.train_steps")
    assert found["experiment.Run.train_steps"] == ("20", f"toy.gin line {steps}")
    assert found["experiment.Run.keep_checkpoints"] == ("3", "default")
    value, origin = found["experiment.Experiment.model"]
    assert value == "@model.MultiTaskModel()"
    assert origin.startswith("gin_configs/defaults.gin line ")
    place = f"toy.gin line {number('csv.Csv.data_dir')}"
    assert found["csv.Csv.data_dir"] == (
        "'elsewhere'",
        f"{place}, %data_dir in --gin_param \"data_dir = 'elsewhere'\"",
    )
    assert found["level/heads.MultiClass.classes"][0] == "3"
    assert found["rich/heads.Binary.threshold"] == ("0.5", "default")
    # No file names this part: it is the default of another part.
    assert found["model.MultiTaskModel.freezing"] == ("@freezing.Freezing()", "default")
    assert found["freezing.Freezing.frozen"] == ("()", "default")


def test_every_value_is_the_one_that_is_built(lines):
    found = lines()
    made = config.load(["toy.gin"])
    for name, part in (("experiment.Run", made.run), ("pipeline.Pipeline", made.data)):
        for setting, value in vars(part).items():
            if isinstance(value, (int, float, str)) and f"{name}.{setting}" in found:
                assert found[f"{name}.{setting}"][0] == repr(value)


def test_parts_may_be_chosen(lines):
    assert {name.rpartition(".")[0] for name in lines(names=["Adam", "rich/heads.Binary"])} == {
        "optimizers.Adam",
        "rich/heads.Binary",
    }
    with pytest.raises(checks.UserError, match="got 'Addam'. Did you mean 'Adam'"):
        lines(names=["Addam"])
