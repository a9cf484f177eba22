"""All sides of the benchmark of reading read the same rows."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import reading


@pytest.mark.medium
def test_every_side_reads_the_same_rows(tmp_path):
    def read(source):
        passes = reading.feed(source).one_pass("train")
        batches = [{**features, **labels} for features, labels in passes]
        return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

    sources = reading.build_sources(str(tmp_path), 1200)
    found = {name: read(source) for name, source in sources.items()}
    for name, values in found.items():
        wanted = found["Subset of Csv" if "Subset" in name else "Csv"]
        assert values.keys() == wanted.keys() and len(values["label"]) > 1000
        for field, expected in wanted.items():
            np.testing.assert_array_equal(values[field], expected, f"{name}: {field}")
    is_text = {name: sources[name].records("train").element_spec for name in ("Tfds", "Csv")}
    assert is_text == dict.fromkeys(is_text, tf.TensorSpec([], tf.string))


@pytest.mark.medium
def test_every_measure_gives_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_BATCHES", 2)
    data = reading.feed(reading.build_sources(str(tmp_path), 1200)["Csv"], cache=True)
    found = reading.time_all(reading.measure_reading, {"Csv": data}, 2)
    assert found["Csv"].shape == (2,) and np.isfinite(found["Csv"]).all()
    assert min(reading.measure_state(data, 1200)) > 0
