"""What all tests share."""

import gc
import os
import pathlib

import pytest
import tensorflow as tf

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Before anything uses TensorFlow: two replicas need two devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
# Plain sessions run graphs as they were built: these are small. Estimator's sessions and
# whole runs of the launchers optimize theirs.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def pytest_collection_finish() -> None:
    """Spares the collector all modules: a tenth of the time of tests that build graphs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
    """The folder of real data sets, MTL_DATA_DIR or ../shared/data; skips where there is none."""
    folder = pathlib.Path(os.environ.get("MTL_DATA_DIR", _ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: set MTL_DATA_DIR")
    return folder
