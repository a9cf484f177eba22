"""Settings and `Experiment.observers` both attach tools to a run, each tool once."""

import dataclasses

import pytest

from mtl import checks
from mtl.tools import attached, clip_audit, profiling, tracking
from tests import tiny
from tests.tools.tracking import trackers


def _make(**settings):
    return dataclasses.replace(tiny.make(train_steps=20), **settings)


def test_a_part_is_found_whether_a_setting_or_the_list_names_it():
    audit, told = clip_audit.ClipAudit(window=7), trackers.Told()
    for made in (_make(clip_audit=audit), _make(observers=[audit])):
        assert attached.select_observers(made, clip_audit.ClipAudit) == [audit]
    reports = tracking.Reporting(trackers=[told])
    for made in (_make(trackers=[told]), _make(observers=[reports])):
        assert attached.list_trackers(made) == [told]


def test_a_tool_that_would_act_twice_is_refused():
    """Both would write the same files."""
    audit = clip_audit.ClipAudit()
    with pytest.raises(checks.UserError, match="Experiment.observers.* must hold each name once"):
        attached.list_observers(_make(clip_audit=audit, observers=[audit]))
    steps = [profiling.Profile(steps=[1, 5]), profiling.Profile(steps=[6, 10])]
    with pytest.raises(checks.UserError, match="got .*Profile"):
        attached.list_observers(_make(observers=steps))
