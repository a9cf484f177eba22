"""Checks settings that hold out rows: flags of `launch.new`, or arguments of `mtl.fit`.

holdouts.make_holdout({"holdout": 0.2, "key": "user"})                      # a plans.Holdout
"""

from collections.abc import Mapping
from typing import Any

from mtl import checks
from mtl.tools.drafting import plans

_SHARE = 0.1
# At most one setting of each group may be used.
_GROUPS = (("time", "key", "test"), ("holdout", "test", "folds"), ("time", "folds"))
_BESIDE = ("validation", "calibration")


def make_holdout(settings: Mapping[str, Any], where: str = "", flag: str = "--") -> plans.Holdout:
    """Return the choice of the held-out rows that the settings describe.

    Args:
      settings: {setting: its value}. `holdout`, `validation` and `calibration` are shares, `folds`
        is a number, `time` and `key` are names of columns, and `test` is the path of a table. A
        setting whose value is None is off.
      where: the text at the beginning of errors, such as "mtl.fit: ".
      flag: the characters before the name of a setting in errors.

    Raises:
      UserError: the settings contradict each other, or leave no rows to train on.
    """
    values = {setting: value for setting, value in settings.items() if value is not None}
    where += flag
    _require_single(values, where, flag)
    _require_numbers(values, where)
    folds = values.get("folds", 0)
    # Each fold is the test split of one run.
    share = 1 / folds if folds else values.get("holdout", _SHARE)
    others = {setting: values.get(setting, 0.0) for setting in _BESIDE}
    # With the setting `test`, the test rows come from another table.
    total = sum(others.values()) + (0.0 if values.get("test") else share)
    rule = "leave rows to train on, with the shares of the other splits"
    for setting, other in others.items():
        checks.require(not other or total < 1, f"{where}{setting}", rule, other)
    key, time, files = (values.get(name, "") for name in ("key", "time", "test"))
    return plans.Holdout(share=share, **others, folds=folds, key=key, time=time, files=files)


def _require_single(values: Mapping[str, Any], where: str, flag: str) -> None:
    """Fail if settings are used together that exclude each other."""
    for names in _GROUPS:
        used = [setting for setting in names if values.get(setting)]
        for setting in used[1:]:
            rule = f"come without {flag}{used[0]}"
            checks.fail(f"{where}{setting}", rule, values[setting])


def _require_numbers(values: Mapping[str, Any], where: str) -> None:
    """Fail unless shares lie between 0 and 1, and the number of folds is at least 2."""
    for setting in ("holdout", *_BESIDE):
        share = values.get(setting, _SHARE)
        is_share = isinstance(share, int | float) and 0 < share < 1
        rule = "be a share of the rows between 0 and 1"
        checks.require(is_share, f"{where}{setting}", rule, share)
    folds = values.get("folds", 2)
    is_number = isinstance(folds, int) and folds > 1
    checks.require(is_number, f"{where}folds", "be at least 2", folds)
