"""Observers are called in the order of the run and of their list; wrong ones are refused."""

import contextlib
import dataclasses

import pytest
import tensorflow as tf

from mtl import checks, types
from mtl.runs import observers
from mtl.tools import attached
from tests import tiny


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told:
    """Notes which members are called, with a name for each observer."""

    told: list
    name: str = "own"

    def __call__(self, run):
        return _Noting(self.told, self.name)


class _Noting(types.RunObserver):
    due_every = (7,)

    def __init__(self, told, name):
        self._told, self._name = told, name

    def prepare(self, is_new):
        self._told.append((self._name, "prepare", is_new))

    def begin(self):
        self._told.append((self._name, "begin"))

    def end_early(self):
        self._told.append((self._name, "end_early"))

    def go_on_from(self, step):
        self._told.append((self._name, "go_on_from", step))

    def save(self, step):
        self._told.append((self._name, "save", step))

    def log(self, kind, step, metrics):
        self._told.append((self._name, kind, step))

    def write_results(self):
        self._told.append((self._name, "write_results"))


def _open(made):
    run = types.ObservedRun(experiment=made, model_dir="run", place=made.distribution.find_place())
    return observers.open_all(run, attached.list_observers(made))


@pytest.mark.medium
def test_members_are_called_in_the_order_of_a_run(tmp_path):
    told = []
    made = dataclasses.replace(tiny.make(train_steps=2), observers=[Told(told=told)])
    tiny.train(made, tmp_path)
    first = [("prepare", True), ("go_on_from", 0), ("begin",), ("save", 0), ("save", 2)]
    assert [one[1:] for one in told] == [*first, ("write_results",)]
    told.clear()
    tiny.train(made, tmp_path)
    assert [one[1:] for one in told] == [("prepare", False), ("end_early",), ("write_results",)]


def test_several_are_called_in_their_order():
    told = []
    made = dataclasses.replace(
        tiny.make(), observers=[Told(told=told, name=name) for name in ("a", "b")]
    )
    opened = _open(made)
    opened.begin()
    assert told == [("a", "begin"), ("b", "begin")]
    assert opened.due_every == (7, 7) and not opened.due_at and not opened.has_due_items
    assert opened.watch_evaluation("model.ckpt-1") is None


def test_a_plain_run_has_the_pictures_alone():
    opened = _open(tiny.make())
    assert [type(one).__name__ for one in opened._all] == ["Drawing"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Due:
    every: float

    def __call__(self, run):
        observer = types.RunObserver()
        observer.due_every = (self.every,)
        return observer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nothing:
    def __call__(self, run):
        return "nothing"


@pytest.mark.parametrize("wrong", [None, [types.RunObserver()], [Told], Told(told=[])])
def test_wrong_observers_are_refused(wrong):
    with pytest.raises(checks.UserError, match=r"^Experiment\.observers must "):
        dataclasses.replace(tiny.make(), observers=wrong)


@pytest.mark.parametrize("every", [0, -3, 2.5, True])
def test_steps_that_never_come_are_refused(every):
    made = dataclasses.replace(tiny.make(), observers=[Due(every=every)])
    with pytest.raises(checks.UserError, match=r"^RunObserver\.due_every must be "):
        _open(made)


def test_a_part_that_makes_no_observer_is_refused():
    made = dataclasses.replace(tiny.make(), observers=[Nothing()])
    rule = r"a part of Experiment\.observers must return a types\.RunObserver or None, got 'str'"
    with pytest.raises(checks.UserError, match=rule):
        _open(made)


def test_a_hook_part_that_makes_no_hook_is_refused():
    made = dataclasses.replace(tiny.make(), hooks=[Nothing()])
    rule = r"Nothing of Experiment\.hooks must return a tf\.compat\.v1\.train\.SessionRunHook, got"
    with pytest.raises(checks.UserError, match=rule):
        _open(made).build_hooks(None, lambda: None)


def test_a_hook_with_a_misspelt_method_is_refused():
    class Steps(tf.compat.v1.train.SessionRunHook):
        def afterrun(self, run_context, run_values):
            """TensorFlow would never call it."""

    made = dataclasses.replace(tiny.make(), hooks=[lambda steps: Steps()])
    with pytest.raises(checks.UserError, match="got 'afterrun'. Did you mean 'after_run'?"):
        _open(made).build_hooks(None, lambda: None)


@pytest.mark.parametrize(
    ("method", "arguments", "says"),
    [
        ("change_data", ("data",), "Own.change_data must return the pipeline, got None."),
        ("around_run", (), "Own.around_run must return a context manager, got None."),
        ("list_extensions", (None, None), "Own.list_extensions must return a list, got None."),
        ("wrap_model_fn", (print,), "Own.wrap_model_fn must return a model_fn, got None."),
        ("build_hooks", (None, None), "Own.build_hooks must return a types.RunHooks, got None."),
    ],
)
def test_methods_of_observers_that_return_nothing_are_one_line(method, arguments, says):
    own = type("Own", (types.RunObserver,), {method: lambda self, *given: None})
    both = observers.Observers([types.RunObserver(), own()])
    with pytest.raises(checks.UserError) as error, contextlib.ExitStack() as stack:
        result = getattr(both, method)(*arguments)
        stack.enter_context(result)
    assert str(error.value) == says


def test_steps_that_are_no_list_are_refused():
    made = dataclasses.replace(tiny.make(), observers=[lambda run: Once()])
    with pytest.raises(checks.UserError, match="Once.due_every must be a list of steps, got 3"):
        _open(made)


class Once(types.RunObserver):
    due_every = 3
