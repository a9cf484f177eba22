"""Runs the graphs of Estimator without TensorFlow's graph optimizer, unless a test asks for it.

pytestmark = pytest.mark.optimizes_graphs

TensorFlow optimizes a graph in its first run, and again for other outputs. This takes a fifth of
the time of a small run in `tests.tiny`. Whole runs of the launchers optimize their graphs.
"""

import tensorflow as tf
from tensorflow_estimator.python.estimator import run_config

from mtl import compat
from mtl.distribution import resources

_configure = resources.configure_session
_get_default = run_config.get_default_session_config
_is_on = False


def turn_on(is_on: bool) -> None:
    """Turn the optimizer on or off for later graphs of this process."""
    global _is_on
    _is_on = is_on


def leave_out() -> None:
    """Leave the optimizer out in this process, until `turn_on`."""
    resources.configure_session = _configure_unoptimized
    run_config.get_default_session_config = _get_unoptimized  # For any other Estimator.


def _configure_unoptimized(
    config: compat.estimator.RunConfig, session_config: tf.compat.v1.ConfigProto
) -> compat.estimator.RunConfig:
    configured = _configure(config, session_config)
    _switch(configured.session_config)
    return configured


def _get_unoptimized() -> tf.compat.v1.ConfigProto:
    config = _get_default()
    _switch(config)
    return config


def _switch(config: tf.compat.v1.ConfigProto) -> None:
    config.graph_options.rewrite_options.disable_meta_optimizer = not _is_on
