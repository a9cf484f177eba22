"""Opens the parts that act beside a training, and calls them as one observer.

run = types.ObservedRun(experiment=experiment, model_dir="runs/a", place=place)
opened = observers.open_all(run, experiment.observers)
with opened.around_run():
    ...                                          # every member of `types.RunObserver`
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mtl import checks, types
from mtl.deferred import tf1
from mtl.types import extensions as extensions_lib


def open_all(run: types.ObservedRun, parts: Sequence[types.OpenObserver]) -> Observers:
    """Open the observers of a run in this process, followed by the hooks of `Experiment.hooks`.

    Raises:
      UserError: an observer does not fit the run, or needs a package that is not installed.
    """
    part_observers = [part(run) for part in parts]
    for observer in part_observers:
        _check(observer)
    hook_observers = [_UserHook(hook) for hook in run.experiment.hooks]
    return Observers(
        [observer for observer in (*part_observers, *hook_observers) if observer is not None]
    )


def _check(observer: Any) -> None:
    """Fail unless an entry of `Experiment.observers` returned None or a valid observer."""
    if observer is None:
        return
    rule, kind = "return a types.RunObserver or None", type(observer).__name__
    is_fit = isinstance(observer, types.RunObserver)
    checks.require(is_fit, "a part of Experiment.observers", rule, kind)
    for name in ("due_every", "due_at", "seen_at"):
        checks.is_a(f"{kind}.{name}", getattr(observer, name), Iterable, "be a list of steps")
        # `due_every` must be positive: a training loop that stops at multiples of 0 never takes a
        # step.
        for step in getattr(observer, name):
            checks.whole(f"{kind}.{name}", step, 1 if name == "due_every" else 0)


def _require(observer: types.RunObserver, method: str, result: Any, is_right: bool) -> Any:
    """Return the result of an observer's method; fail unless it has the right type."""
    where = f"{type(observer).__name__}.{method}"
    checks.require(is_right, where, f"return {_RESULTS[method]}", result)
    return result


_RESULTS = {
    "change_data": "the pipeline",
    "around_run": "a context manager",
    "list_extensions": "a list",
    "wrap_model_fn": "a model_fn",
    "build_hooks": "a types.RunHooks",
}


class Observers(types.RunObserver):
    """Combines several observers into a single observer.

    Args:
      observers: the observers; every method calls them in this order.
    """

    def __init__(self, observers: Sequence[types.RunObserver]):
        self._all = observers
        self.due_every = tuple(step for observer in observers for step in observer.due_every)
        self.due_at = tuple(step for observer in observers for step in observer.due_at)
        self.seen_at = tuple(step for observer in observers for step in observer.seen_at)
        self.has_due_items = any(observer.has_due_items for observer in observers)
        self.writes_graph = any(observer.writes_graph for observer in observers)

    def change_data(self, data: Any) -> Any:
        for observer in self._all:
            new = observer.change_data(data)
            data = _require(observer, "change_data", new, new is not None)
        return data

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for observer in self._all:
                context = observer.around_run()
                is_context = hasattr(context, "__enter__")
                stack.enter_context(_require(observer, "around_run", context, is_context))
            yield

    def prepare(self, is_new: bool) -> None:
        for observer in self._all:
            observer.prepare(is_new)

    def begin(self) -> None:
        for observer in self._all:
            observer.begin()

    def end_early(self) -> None:
        for observer in self._all:
            observer.end_early()

    def go_on_from(self, step: int) -> None:
        for observer in self._all:
            observer.go_on_from(step)

    def list_extensions(self, model: Any, statistics: Any) -> list[types.MakeExtension]:
        extensions: list[types.MakeExtension] = []
        for observer in self._all:
            new = observer.list_extensions(model, statistics)
            is_list = isinstance(new, (list, tuple))
            extensions += _require(observer, "list_extensions", new, is_list)
        return extensions

    def list_last_extensions(self) -> list[types.MakeExtension]:
        return [
            extension for observer in self._all for extension in observer.list_last_extensions()
        ]

    def wrap_model_fn(self, model_fn: Callable[..., Any]) -> Callable[..., Any]:
        for observer in self._all:
            new = observer.wrap_model_fn(model_fn)
            model_fn = _require(observer, "wrap_model_fn", new, callable(new))
        return model_fn

    def build_hooks(
        self, result: Any, metrics: Callable[[], Mapping[str, Any] | None]
    ) -> types.RunHooks:
        hook_sets = []
        for observer in self._all:
            hooks = observer.build_hooks(result, metrics)
            is_right = isinstance(hooks, types.RunHooks)
            hook_sets.append(_require(observer, "build_hooks", hooks, is_right))
        return types.RunHooks(
            first=[hook for hooks in hook_sets for hook in hooks.first],
            of_steps=[hook for hooks in hook_sets for hook in hooks.of_steps],
            before_saving=[hook for hooks in hook_sets for hook in hooks.before_saving],
            last=[hook for hooks in hook_sets for hook in hooks.last],
        )

    def save(self, step: int) -> None:
        for observer in self._all:
            observer.save(step)

    def watch_evaluation(self, checkpoint: str) -> types.EvaluationHooks | None:
        results = (observer.watch_evaluation(checkpoint) for observer in self._all)
        builders = [build for build in results if build is not None]
        # If no observer has hooks for evaluations, return None, so that the evaluator uses the same
        # graph for all checkpoints.
        if not builders:
            return None
        return lambda *tensors: [hook for build in builders for hook in build(*tensors)]

    def add_to_export(self, written: Any) -> None:
        for observer in self._all:
            observer.add_to_export(written)

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        for observer in self._all:
            observer.log(kind, step, metrics)

    def close(self) -> None:
        for observer in self._all:
            observer.close()

    def write_results(self) -> None:
        for observer in self._all:
            observer.write_results()


class _UserHook(types.RunObserver):
    """Makes an observer from a hook of `Experiment.hooks`."""

    def __init__(self, hook: types.Hook):
        self._hook = hook
        self.due_every = (types.read_member(hook, types.Hook, "every_steps"),)

    def build_hooks(
        self, result: Any, metrics: Callable[[], Mapping[str, Any] | None]
    ) -> types.RunHooks:
        hook, rule = self._hook(result), "return a tf.compat.v1.train.SessionRunHook"
        where = f"{type(self._hook).__name__} of Experiment.hooks"
        checks.is_a(where, hook, tf1.train.SessionRunHook, rule)
        extensions_lib.refuse_misspelt(type(hook))
        return types.RunHooks(before_saving=[hook])
