"""Makes the summaries that a run writes once: configuration, chart layout, settings for HParams.

summary = once.write_text("configuration", gin)
summary = once.lay_out(heads, losses, has_surgery=False)
summary = once.start_session(experiment, metrics, time.time())
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalars
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import summary as hparams
from tensorboard.plugins.text import metadata as text_metadata

from mtl import checks, types
from mtl.deferred import tf, tf1

# Fields of an experiment that change the learned model. Fields that are not in `_LEARNED` say, for
# example, where outputs go.
_LEARNED = ("data", "model", "run", "warm_start")
_LEFT_OUT = (
    "data.source",
    "data.spec",
    "run.check_numerics",
    "run.checkpoint",
    "run.keep",
    "run.profile",
    "run.summary",
    "run.steps",
)
_PLAIN = bool | int | float | str
EVALUATION = "evaluation"
"""The prefix of metrics for HParams, which only finds metrics in the folder of the run itself."""


def write_text(tag: str, text: str) -> tf.compat.v1.Summary:
    """Return a summary with a text whose lines are indented, so that Markdown shows it as code."""
    block = "\n".join(f"    {line}" for line in text.splitlines())
    plugin_metadata = text_metadata.create_summary_metadata(display_name=tag, description="")
    # TensorBoard and TensorFlow have different Python classes for `SummaryMetadata`.
    metadata = tf1.SummaryMetadata.FromString(plugin_metadata.SerializeToString())
    tensor = tf.make_tensor_proto(block.encode(), tf.string)
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])


def lay_out(
    heads: Sequence[types.Head], losses: Sequence[str], has_surgery: bool
) -> tf.compat.v1.Summary:
    """Return TensorBoard's layout of charts: for each loss, its curves, metrics and weights.

    Args:
      heads: the heads of the tasks.
      losses: the names of all losses, including auxiliary losses.
      has_surgery: True if the run writes the norms of the gradients of single tasks.
    """
    chart, multiline = layout_pb2.Chart, layout_pb2.MultilineChartContent
    by_task = {head.name: head for head in heads}

    def draw(title: str, *tags: str) -> Any:
        # Tags are regular expressions. Without anchors, "loss" would match all losses.
        return chart(title=title, multiline=multiline(tag=[f"^{tag}$" for tag in tags]))

    categories = []
    # Include tasks without a loss, such as composed tasks, which only have metrics.
    for name in dict.fromkeys([*losses, *by_task]):
        pattern = re.escape(name)
        charts = [draw("loss", f"{pattern}/loss", f"{pattern}/average_loss")]
        head = by_task.get(name)
        directions = types.read_member(head, types.Head, "directions") if head else {}
        # Leave out patterns, which may not match any metric of the run.
        metrics = [m for m in directions if m != "average_loss" and "*" not in m]
        charts += [draw(metric, f"{pattern}/{re.escape(metric)}") for metric in metrics]
        # A run writes the weight of each task under at least one of the two tags.
        charts.append(draw("weight", f"weight/{pattern}", f"surgery/weight/{pattern}"))
        if has_surgery:
            charts.append(draw("norm of its gradient", f"surgery/norm/{pattern}"))
        categories.append(layout_pb2.Category(title=name, chart=charts))
    everything = [
        draw("loss", "loss", "average_loss"),
        draw("learning rate", "learning_rate"),
        draw("norm of the gradient", "gradient_norm"),
        draw("weights", "weight/.*", "surgery/weight/.*"),
        draw("speed", "steps_per_sec"),
    ]
    # Put the category "all tasks" first on the page.
    categories.insert(0, layout_pb2.Category(title="all tasks", chart=everything))
    return custom_scalars.pb(layout_pb2.Layout(category=categories))


def start_session(experiment: Any, metrics: Mapping[str, str], time: float) -> tf.compat.v1.Summary:
    """Return a summary with the settings and the names of main metrics for HParams.

    Args:
      experiment: an `experiment.Experiment`.
      metrics: {metric of evaluations: name in HParams}.
      time: the start of the run, in seconds since 1970.
    """
    settings = dict(_list_settings(experiment))
    name = api_pb2.MetricName
    infos = [
        api_pb2.MetricInfo(name=name(tag=f"{EVALUATION}/{tag}"), display_name=display_name)
        for tag, display_name in metrics.items()
    ]
    infos_of_settings = [
        api_pb2.HParamInfo(name=key, type=_type_of(value)) for key, value in settings.items()
    ]
    summary = tf1.Summary()
    for part in (
        hparams.experiment_pb(infos_of_settings, infos, time_created_secs=time),
        hparams.session_start_pb(settings, start_time_secs=time),
    ):
        # Merging appends repeated fields, so the summary holds the values of the experiment and of
        # the session start.
        summary.MergeFromString(part.SerializeToString())
    for value in summary.value:
        # Settings are a map in a protocol buffer, whose order of bytes may differ between
        # processes.
        data = value.metadata.plugin_data
        content = plugin_data_pb2.HParamsPluginData.FromString(data.content)
        data.content = content.SerializeToString(deterministic=True)
    return summary


def write_metrics(metrics: Mapping[str, float], names: Iterable[str]) -> tf.compat.v1.Summary:
    """Return a summary with the metrics of an evaluation that HParams shows.

    Args:
      metrics: {metric: value} of the evaluation.
      names: the names of the metrics to show; missing metrics are skipped.
    """
    return tf1.Summary(
        value=[
            tf1.Summary.Value(tag=f"{EVALUATION}/{name}", simple_value=float(metrics[name]))
            for name in names
            if name in metrics
        ]
    )


def end_session() -> tf.compat.v1.Summary:
    """Return a summary that marks a run as finished for HParams."""
    part = hparams.session_end_pb(api_pb2.STATUS_SUCCESS)
    return tf1.Summary.FromString(part.SerializeToString())


def _type_of(value: Any) -> Any:
    if isinstance(value, bool):
        return api_pb2.DATA_TYPE_BOOL
    return api_pb2.DATA_TYPE_STRING if isinstance(value, str) else api_pb2.DATA_TYPE_FLOAT64


def _list_settings(experiment: Any) -> Iterator[tuple[str, bool | float | str]]:
    for name in _LEARNED:
        yield from _flatten(getattr(experiment, name), name)


def _flatten(value: Any, path: str) -> Iterator[tuple[str, bool | float | str]]:
    """Yield the path and the value of each number, text, bool and class in a setting."""
    # The entries of `_LEFT_OUT` are prefixes: "run.keep" also leaves out run.keep_checkpoints.
    if path.startswith(_LEFT_OUT) or value is None:
        return
    if isinstance(value, _PLAIN):
        yield path, value
    elif isinstance(value, list | tuple) and all(isinstance(item, _PLAIN) for item in value):
        if value:
            yield path, ", ".join(map(str, value))
    else:
        if checks.is_part(value):
            yield path, type(value).__name__
        for suffix, item in _list_within(value):
            yield from _flatten(item, path + suffix)


def _list_within(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (suffix of the path, value) for the values in a part, a list or a mapping."""
    if checks.is_part(value):
        for field in dataclasses.fields(value):
            # Leave out fields that a part computes from other fields.
            if field.init:
                yield f".{field.name}", getattr(value, field.name)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            # Use the name of a head, which stays the same if other heads are added before it.
            yield f"[{getattr(item, 'name', None) or number}]", item
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key}]", item
