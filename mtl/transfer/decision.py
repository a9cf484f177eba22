"""Decides from which saved value each variable of a run starts.

decisions = decision.Decision(warm_start, source, {"head/digit/logits/kernel": [32, 10], ...}, {})
decisions.entry("head/digit/logits/kernel").outcome      # "warmed"
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.deferred import tf
from mtl.transfer import capacity, plan
from mtl.transfer import source as source_lib
from mtl.variables import averaging, patterns, pruned
from mtl.variables import row_names as row_names_lib

# Suffixes of the variables in which `features.Growing` and `StreamedFrequency` save global steps.
_STEPS = ("/last_seen", "/frequency/step")


@dataclasses.dataclass(frozen=True)
class Decision:
    """Applies the rules of a `WarmStart`.

    Attributes:
      settings: the `WarmStart` of the run.
      source: the saved variables.
      shapes: {variable: shape} of all variables in this run, with optimizer state.
      named: {scope: names of the rows in this run}.
      trained: the trainable variables, which belong to the model whatever their names are.
      placed: a cache, {name of the keys of a table: (saved keys, index of the saved row for each
        row)}.
    """

    settings: Any
    source: source_lib.Source
    shapes: Mapping[str, Sequence[int]]
    named: Mapping[str, types.RowNames]
    trained: Collection[str] = ()
    placed: dict[str, tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=dict)

    def entry(self, name: str) -> plan.Entry:
        """Return the decision about a variable, by its name.

        Raises:
          UserError: the shape of the variable differs from the saved shape, or `rename` leads to a
            name that the source does not have.
        """
        entry = functools.partial(plan.Entry, name=name, shape=self.shapes[name])
        reason = self._reason_to_skip(name)
        if reason:
            return entry(outcome="skipped", why=reason)
        old = self._name_there(name)
        if capacity.is_sketch(name) and self.source.shapes.get(old) != list(self.shapes[name]):
            return entry(outcome="initialised", why="the source lacks one of this size")
        if old in self.source.shapes:
            return self._warm(entry, name, old)
        keys = capacity.find_counted_keys(old, self.source.shapes)
        if keys:  # An export saves the keys of a table, but not the number of keys.
            return entry(outcome="warmed", why="counted from its keys", source=keys, is_count=True)
        self._check_rename(name, old)
        return entry(outcome="initialised", why="the source lacks it")

    def _warm(self, entry: Callable[..., plan.Entry], name: str, old: str) -> plan.Entry:
        """Return the decision about a variable that the source has under the name `old`."""
        rows = self._rows_by_key(name, old) or self._match_rows(name, old)
        outcome, reasons = ("warmed", []) if old == name else ("renamed", [f"from {old}"])
        if rows is not None:
            count = (rows.origins >= 0).sum()
            reasons.append(f"{count} of {rows.origins.size} rows by name")
            if not count and self.settings.new_rows == "own":
                return entry(outcome="initialised", why="; ".join(reasons))
        # Optimizer state fits the weights themselves, not their average.
        source = old if self.settings.slots else self.source.trained_name(old)
        reasons += ["its average"] if source != old else []
        is_unnamed = self._is_unnamed(name, old)
        why = "rows keep their places, because the source does not name them"
        reasons += [why] if is_unnamed else []
        return entry(
            outcome=outcome,
            why="; ".join(reasons),
            source=source,
            rows=rows,
            offset=self._find_offset(name),
            is_unnamed=is_unnamed,
        )

    def _find_offset(self, name: str) -> int:
        """Return the offset that lets steps of the source count from the first step of this run."""
        step = tf.compat.v1.GraphKeys.GLOBAL_STEP
        has_steps = name.endswith(_STEPS) and step in self.source.shapes
        return -int(self.source.read_value(step)) if has_steps else 0

    def _is_unnamed(self, name: str, old: str) -> bool:
        """Return True if the rows of a variable have names in this run, but not in the source."""
        names = row_names_lib.find_row_names(self.named, name)
        if names is None or self.is_optimizers(name) or self._row_names_there(name, old):
            return False
        return names.are_grouped or row_names_lib.fit_shape(names, list(self.shapes[name]))

    def is_optimizers(self, name: str) -> bool:
        """Return True for optimizer state: the name is "<variable>/<slot>", or has no scope."""
        if name in self.trained or name == tf.compat.v1.GraphKeys.GLOBAL_STEP:
            return False
        return "/" not in name or find_owner(name, self.shapes) != name

    def _check_rename(self, name: str, old: str) -> None:
        """Check that the source has the name to which `rename` leads."""
        is_lacking = old == name or self.is_optimizers(name)
        rule = f"lead to a variable of {self.source.path}"
        fix = checks.nearest(old, self.source.shapes)
        checks.require(is_lacking, f"WarmStart.rename of {name!r}", rule, old, fix)

    def _reason_to_skip(self, name: str) -> str:
        if name == tf.compat.v1.GraphKeys.GLOBAL_STEP:
            return "a run counts its own steps"
        # A mask is loaded with the weights that it prunes, unless other tasks may use the pruned
        # weights.
        weights = pruned.find_weights(name)
        if weights != name and pruned.is_shared_out(weights, self.shapes):
            return "another task may use the cut weights"
        # The keys of a growing table, and the variables beside the keys, are loaded with the table.
        name = capacity.find_table(weights, self.shapes)
        is_state = self.is_optimizers(name)
        if is_state and not self.settings.slots:
            return "the optimizer's state"
        if is_state and averaging.is_state(name):
            return "a run begins its own averages"
        # Optimizer variables that are not slots have no scope that `include` could match.
        return self._reason_to_exclude(name, is_included=is_state and "/" not in name)

    def _reason_to_exclude(self, name: str, is_included: bool) -> str:
        """Return the reason why patterns leave out a variable; "" if they include it."""
        names = (name, find_owner(name, self.shapes))  # Also excludes slots.
        for pattern in self.settings.exclude:
            if any(patterns.matches(pattern, part) for part in names):
                return f"excluded by {pattern!r}"
        for pattern in self.settings.include:
            is_included |= any(patterns.matches(pattern, part) for part in names)
        return "" if is_included else "not included"

    def _name_there(self, name: str) -> str:
        """Return a variable's name in the source; `rename` also applies to its masks and slots."""
        owner = find_owner(name, self.shapes)
        for pattern, replacement in self.settings.rename.items():
            if patterns.matches(pattern, owner):
                return re.sub(pattern, replacement, owner) + name.removeprefix(owner)
            if patterns.matches(pattern, name):
                return re.sub(pattern, replacement, name)
        return name

    def _rows_by_key(self, name: str, old: str) -> plan.Rows | None:
        """Return which saved row each row of a growing table gets; None if rows keep places."""
        shape, old_shape = list(self.shapes[name]), list(self.source.shapes[old])
        our_keys = capacity.find_keys(name, self.shapes)
        their_keys = capacity.find_keys(old, self.source.shapes)
        if (our_keys is None) != (their_keys is None) and shape:
            rule = f"be a growing table here and in {self.source.path}, or in neither"
            fix = "Exclude the variable with WarmStart.exclude."
            checks.fail(f"variable {name!r}", rule, our_keys or their_keys, fix)
        if our_keys is None or their_keys is None or not shape:
            return None
        # Tables of equal shape may still differ: in one table, more rows may be for keys, and fewer
        # rows for unknown keys.
        if shape == old_shape and list(self.shapes[our_keys]) == list(
            self.source.shapes[their_keys]
        ):
            return None
        keys, of_keys = self._place_keys(our_keys, their_keys)
        origins = capacity.place_rows(of_keys, keys.size, old_shape, shape)
        # Rows without a saved key are free; `is_state` keeps `new_rows` from filling these rows.
        return plan.Rows(origins, 0, keys.size, is_state=True)

    def _place_keys(self, our_keys: str, their_keys: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the saved keys of a table, and the index of the saved row for each row."""
        if our_keys not in self.placed:
            keys, rows = self.source.read_value(their_keys), math.prod(self.shapes[our_keys])
            self.placed[our_keys] = keys, capacity.place_keys(keys, rows, self.source.path)
        return self.placed[our_keys]

    def _match_rows(self, name: str, old: str) -> plan.Rows | None:
        """Return which saved row each row of a variable gets; None if rows keep their places."""
        shape, old_shape = list(self.shapes[name]), list(self.source.shapes[old])
        our_names = row_names_lib.find_row_names(self.named, name)
        their_names = self._row_names_there(name, old)
        fit = row_names_lib.fit_shape
        # Each row of hashed values stands for several names, so rows cannot be matched one by one.
        if our_names and their_names and (our_names.are_grouped or their_names.are_grouped):
            self._require_equal_groups(name, our_names, their_names)
        elif our_names and their_names and fit(our_names, shape) and fit(their_names, old_shape):
            axis = our_names.axis % len(shape)
            if _other_sizes(shape, axis) == _other_sizes(
                old_shape, their_names.axis % len(old_shape)
            ):
                return self._rows_by_name(name, old, our_names, their_names)
        self._require_equal_order(name, our_names, their_names)
        self._require_equal_shapes(name, shape, old_shape)
        return None

    def _rows_by_name(
        self, name: str, old: str, our_names: types.RowNames, their_names: types.RowNames
    ) -> plan.Rows | None:
        """Match rows by their names; return None if all rows keep their places."""
        shape, old_shape = self.shapes[name], self.source.shapes[old]
        # Names of classes belong to the last axis, -1, and names of tokens to the first axis.
        axis = our_names.axis % len(shape)
        old_names, new_names = map(row_names_lib.read_names, (their_names, our_names))
        origins = row_names_lib.match_rows(old_names, new_names, old_shape[axis], shape[axis])
        is_same = np.array_equal(origins, np.arange(old_shape[axis]))
        is_state = self.is_optimizers(name)
        return None if is_same else plan.Rows(origins, axis, len(old_names), is_state)

    def _require_equal_shapes(self, name: str, shape: list[int], old_shape: list[int]) -> None:
        fix = "Set WarmStart.exclude for the variable, or WarmStart.row_names for its saved rows."
        if pruned.find_weights(name) != name:
            fix = "Set Pruning.granularity as in the source, or exclude the weights that it cuts."
        rule = f"have its shape {shape} in {self.source.path} too"
        checks.require(shape == old_shape, f"variable {name!r}", rule, old_shape, fix)

    def _require_equal_order(
        self, name: str, our_names: types.RowNames | None, their_names: types.RowNames | None
    ) -> None:
        """Check the order of classes of a head that has fewer columns of weights than classes.

        A `Binary` or `Ordinal` head would predict the reverse with the classes in another order.
        """
        if not our_names or not their_names or our_names.axis != -1 or not self.shapes[name]:
            return
        our_classes, their_classes = map(row_names_lib.read_names, (our_names, their_names))
        is_moved = our_classes != their_classes and set(our_classes) == set(their_classes)
        rule = f"have the order of classes in {self.source.path}, {', '.join(their_classes[:9])}"
        fix = "Exclude the variable with WarmStart.exclude, or change the order of classes here."
        is_of_classes = self.shapes[name][-1] in (1, len(our_classes) - 1)
        where = f"variable {name!r}"
        checks.require(not (is_moved and is_of_classes), where, rule, our_classes[:9], fix)

    def _require_equal_groups(
        self, name: str, our_names: types.RowNames, their_names: types.RowNames
    ) -> None:
        """Check that each row that several names share has the same names in the source."""
        our_values, their_values = map(row_names_lib.read_names, (our_names, their_names))
        are_sets = our_names.are_a_set and their_names.are_a_set
        is_part = set(our_values) <= set(their_values) or set(our_values) >= set(their_values)
        is_same = our_names.are_grouped == their_names.are_grouped and (
            is_part if are_sets else our_values == their_values
        )
        rule = f"have the same vocabulary, hash and embedding in {self.source.path}"
        fix = "Each row stands for several values: exclude the variable with WarmStart.exclude."
        checks.require(is_same, f"variable {name!r}", rule, "others", fix)

    def _row_names_there(self, name: str, old: str) -> types.RowNames | None:
        our_names = row_names_lib.find_row_names(self.named, name)
        for pattern, names in self.settings.row_names.items():
            if our_names and patterns.matches(pattern, name):
                is_there = not isinstance(names, str) or tf.io.gfile.exists(names)
                where = f"WarmStart.row_names[{pattern!r}]"
                checks.require(is_there, where, "be an existing file", names)
                their_names = our_names._replace(names=names)
                is_table = not self.is_optimizers(name) and not our_names.are_grouped
                if is_table and row_names_lib.fit_shape(our_names, list(self.shapes[name])):
                    self._require_fit(where, their_names, old)
                return their_names
        return row_names_lib.find_row_names(self.source.named, old)

    def _require_fit(self, where: str, names: types.RowNames, old: str) -> None:
        """Check that `WarmStart.row_names` names each row of a saved variable once.

        With a wrong number of names, rows would not be matched by name, but by place.
        """
        listed, shape = row_names_lib.read_names(names), self.source.shapes[old]
        checks.unique(where, listed)
        limit = "at most " if names.and_unknown else ""
        size = f"{limit}{shape[names.axis]}" if shape else "no"
        rule = f"hold {size} names, for the rows of {old!r} in {self.source.path}"
        fits = row_names_lib.fit_shape(names, shape)
        checks.require(fits, where, rule, len(listed))


def find_owner(name: str, names: Mapping[str, Any]) -> str:
    """Return the variable to which "<variable>/<slot>" belongs; for other variables, `name` itself.

    Args:
      name: the name of a variable.
      names: the names of all variables, as the keys of a map.
    """
    parts = name.split("/")
    owners = ("/".join(parts[:end]) for end in range(1, len(parts)))
    return next((owner for owner in owners if owner in names), name)


def _other_sizes(shape: Sequence[int], axis: int) -> tuple[int, list[int]]:
    """Return `axis` itself, and the sizes of all other axes of a shape."""
    return axis, [size for index, size in enumerate(shape) if index != axis]
