"""Only exports that stay as trained are built with stacked variables."""

import dataclasses

import pytest

from mtl import serving
from mtl.runs import estimators
from tests import tiny


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
    """Rewrites exports in a way that is not known here."""

    allowed: float = 1e-5

    def __call__(self, directory):
        """Do nothing with the SavedModel in `directory`."""


@pytest.mark.parametrize(
    ("optimized", "is_converted", "may_stack"),
    [
        (None, False, True),
        (None, True, False),
        (serving.AsTrained(), False, True),
        (serving.Optimized(), False, False),
        (Own(), False, False),
    ],
)
def test_exports_that_are_rewritten_or_converted_have_variables_for_each_task(
    monkeypatch, optimized, is_converted, may_stack
):
    built = []
    monkeypatch.setattr(
        estimators, "build_estimator", lambda *given, may_stack: built.append((given, may_stack))
    )
    made = dataclasses.replace(tiny.make(), serving=serving.Serving(optimized=optimized))
    estimators.build_exported(made, "runs/a", "runs/a/model.ckpt-1", is_converted)
    assert built == [((made, "runs/a", "runs/a/model.ckpt-1"), may_stack)]
