"""Runs TensorFlow's debugger of session calls (tfdbg), which has no public API.

options = debugger.watch_tensors(graph, "/tmp/step_20")      # for `session.run(..., options)`
dump = debugger.open_dump("/tmp/step_20")
hook = debugger.Prompt(is_due=lambda: step == 20)             # opens tfdbg in the terminal
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.debug.lib import debug_data, debug_utils
from tensorflow.python.debug.wrappers import framework, hooks

from mtl.deferred import tf, tf1


def watch_tensors(graph: tf.Graph, folder: str) -> tf.compat.v1.RunOptions:
    """Return options with which a session call writes every tensor to a folder.

    Args:
      graph: the graph of the session.
      folder: a folder that is empty or does not exist.
    """
    options = tf1.RunOptions()
    debug_utils.watch_graph(
        options, graph, debug_urls=[f"file://{folder}"], tolerate_debug_op_creation_failures=True
    )
    return options


def plain_session(config: tf.compat.v1.ConfigProto) -> tf.compat.v1.ConfigProto:
    """Return settings for a session that runs every op of the graph, without optimisations.

    Args:
      config: the settings of an optimised session; the function changes only a copy of them.
    """
    result = tf1.ConfigProto()
    result.CopyFrom(config)
    result.graph_options.rewrite_options.disable_meta_optimizer = True
    result.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return result


def open_dump(folder: str) -> Any:
    """Open the files of `watch_tensors` as a `DebugDumpDir`, which reads tensors on demand."""
    return debug_data.DebugDumpDir(folder, validate=False)


def list_nodes(dump: Any) -> Iterator[tf.compat.v1.NodeDef]:
    """Yield all nodes that ran, also in loops and branches, without nodes of the debugger.

    Args:
      dump: a `DebugDumpDir`, as from `open_dump`.
    """
    for graph in dump.reconstructed_non_debug_partition_graphs().values():
        yield from graph.node


class Prompt(tf.compat.v1.train.SessionRunHook):
    """Opens tfdbg in the terminal before and after session calls, if `is_due()` is True."""

    def __init__(self, is_due: Callable[[], bool]):
        self._hook, self._is_due, self._is_open = hooks.LocalCLIDebugHook("readline"), is_due, False

    def before_run(self, run_context):
        self._is_open = self._is_due()
        return self._hook.before_run(run_context) if self._is_open else None

    def after_run(self, run_context, run_values):
        if self._is_open:
            self._hook.after_run(run_context, run_values)
            self._is_open = False

    def show_failure(self, error: tf.errors.OpError) -> None:
        """Open tfdbg after a failed session call, for which TensorFlow calls no hook."""
        if self._is_open:
            action = self._hook._performed_action
            request = framework.OnRunEndRequest(action, tf1.RunMetadata(), tf_error=error)
            self._hook._session_wrapper.on_run_end(request)
