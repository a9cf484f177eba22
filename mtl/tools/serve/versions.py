"""Loads new versions of a model into memory, and closes old versions that no request uses.

models = versions.Versions(exports.list_versions, load, keep=2)
models.poll()                            # loads the newest version; call it again and again
with models.lease(None) as model: ...    # the newest version, which stays open in this context
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mtl import checks
from mtl.data import source
from mtl.deferred import tf
from mtl.tools.serve import failures, models

_log = logging.getLogger("mtl.tools.serve")

# If a version cannot be loaded, the server tries again after `_FIRST_WAIT` seconds. The wait
# doubles with each further failure, up to `_LONGEST_WAIT` seconds.
_FIRST_WAIT, _LONGEST_WAIT = 5.0, 300.0


class _Failure(NamedTuple):
    """A failure to load a version of the model.

    Attributes:
      reason: the error message.
      again: the value of `time.monotonic` from which the server tries again to load the version.
      wait: the seconds between the failure and `again`.
    """

    reason: str
    again: float
    wait: float


class State(NamedTuple):
    """The state of a version.

    Attributes:
      name: the name of the state in TensorFlow Serving: "LOADING", "AVAILABLE", "UNLOADING" or
        "END".
      reason: the reason why the version cannot be loaded; "" without a failure.
    """

    name: str
    reason: str = ""


class Versions:
    """The loaded versions of a model. All methods are thread-safe."""

    def __init__(
        self,
        find: Callable[[], Mapping[int, str]],
        load: Callable[[int, str], models.Model],
        keep: int = 1,
        only: int | None = None,
    ):
        """Store the settings. Nothing is loaded before the first call of `poll`.

        Args:
          find: a function that returns {version: folder} for all complete versions.
          load: a function that loads a version from its number and its folder.
          keep: the number of versions that stay loaded.
          only: the only version to serve; None for the newest version.
        """
        self._find, self._load, self._keep, self._only = find, load, keep, only
        # While a model loads, `poll` holds the lock `_polling` for seconds. Requests wait only for
        # `_lock`, which is never held for long.
        self._lock, self._polling = threading.Lock(), threading.Lock()
        self._loaded: dict[int, models.Model] = {}
        self._users: dict[models.Model, int] = {}
        self._retired: set[models.Model] = set()
        self._failures: dict[int, _Failure] = {}
        self._loading: int | None = None
        self._newest: int | None = None
        self._is_gone = False

    def poll(self) -> None:
        """Look for versions, load the newest version, and close unused old versions.

        If no version is loaded yet and the newest version fails, the next older version is loaded.
        """
        with self._polling:
            folders = self._find()
            if self._only is not None:
                folders = {number: path for number, path in folders.items() if number == self._only}
            self._tell_absence(bool(folders))
            if not folders:
                return  # If there are no folders, the loaded versions stay in use.
            for number in sorted(folders, reverse=True):
                if number not in self._loaded and self._is_due(number):
                    self._try_load(number, folders[number])
                if self._loaded:
                    break
            self._settle_versions(folders)

    def load_first(self) -> models.Model:
        """Load a version when the server starts, and return its model.

        Raises:
          UserError: the version cannot be loaded.
        """
        self.poll()
        if not self._loaded:
            reasons = [f"version {n}: {failure.reason}" for n, failure in self._failures.items()]
            fix = "Choose another version with --version."
            raise checks.UserError(f"no version can be served: {'; '.join(reasons)}. {fix}")
        with self.lease(None) as model:
            return model

    def _tell_absence(self, is_there: bool) -> None:
        if self._newest is not None and not is_there and not self._is_gone:
            line = "The folder of version %d is gone; the server uses the version in memory."
            _log.warning(line, self._newest)
        self._is_gone = not is_there

    def _is_due(self, number: int) -> bool:
        failure = self._failures.get(number)
        return failure is None or time.monotonic() >= failure.again

    def _try_load(self, number: int, path: str) -> None:
        self._loading = number
        try:
            model = self._load(number, path)
        # A broken version must not end a server that serves an earlier version.
        except (OSError, ValueError, RuntimeError, KeyError, tf.errors.OpError) as error:
            self._note_failure(number, error)
        else:
            with self._lock:
                self._failures.pop(number, None)
                self._loaded[number] = model
                self._users[model] = 0
        finally:
            # Reset `_loading` last, so that `list_states` always has a state for the version.
            self._loading = None

    def _note_failure(self, number: int, error: Exception) -> None:
        last_failure = self._failures.get(number)
        reason = str(error) if isinstance(error, checks.UserError) else ""
        reason = (reason or source.explain_unreadable(error)).rstrip(".")
        # The server polls again and again, so log the same reason only once.
        if last_failure is None or last_failure.reason != reason:
            served = f"; version {self._newest} stays in use" if self._newest is not None else ""
            _log.warning("Version %d cannot be loaded: %s%s.", number, reason, served)
        wait = min(_LONGEST_WAIT, 2 * last_failure.wait) if last_failure else _FIRST_WAIT
        # Other threads may be reading the failures in `list_states`.
        with self._lock:
            self._failures[number] = _Failure(reason, time.monotonic() + wait, wait)

    def _settle_versions(self, folders: Mapping[int, str]) -> None:
        """Choose the newest version; retire versions whose folder is gone, and surplus old ones."""
        with self._lock:
            # Loaded versions stay in use if the folders of all loaded versions are gone.
            good = [n for n in sorted(self._loaded) if n in folders] or sorted(self._loaded)
            if not good:
                return
            newest = good[-self._keep :]
            if self._newest not in (None, newest[-1]):
                _log.info("Serving version %d instead of %d.", newest[-1], self._newest)
            self._newest = newest[-1]
            for number in set(self._loaded) - set(newest):
                self._retired.add(self._loaded.pop(number))
            self._failures = {n: failure for n, failure in self._failures.items() if n in folders}
        self._close_unused()

    def _close_unused(self) -> None:
        with self._lock:
            unused = [model for model in self._retired if not self._users[model]]
            for model in unused:
                self._retired.remove(model)
                del self._users[model]
        for model in unused:
            model.close()

    @contextlib.contextmanager
    def lease(self, number: int | None) -> Iterator[models.Model]:
        """Yield a loaded version, which stays open until the context ends.

        Args:
          number: the version; None for the newest.

        Raises:
          RequestError: the version is not loaded.
        """
        with self._lock:
            choice = self._newest if number is None else number
            model = None if choice is None else self._loaded.get(choice)
            if model is None:
                raise failures.RequestError(failures.NOT_FOUND, self._explain_absence(number))
            self._users[model] += 1
        with self._release_model(model):
            yield model

    @contextlib.contextmanager
    def hold(self, model: models.Model) -> Iterator[None]:
        """Return a context that keeps a leased model open, even if the lease ends earlier.

        Args:
          model: a model from `lease`, whose lease has not yet ended.
        """
        with self._lock:
            self._users[model] += 1
        with self._release_model(model):
            yield

    @contextlib.contextmanager
    def _release_model(self, model: models.Model) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._users[model] -= 1
                is_over = model in self._retired and not self._users[model]
            if is_over:
                self._close_unused()

    def _explain_absence(self, number: int | None) -> str:
        if number is None:
            return "no version is loaded yet"
        numbers = ", ".join(map(str, sorted(self._loaded))) or "(nothing)"
        near = checks.nearest(number, self._loaded)
        return f"version {number} is not loaded, only {numbers}. {near}".rstrip()

    @property
    def newest(self) -> int | None:
        """The version for requests that name no version; None before a version is loaded."""
        return self._newest

    def list_states(self) -> dict[int, State]:
        """Return {version: state}, from the newest to the oldest."""
        with self._lock:
            states = {model.number: State("UNLOADING") for model in self._retired}
            states |= {n: State("END", failure.reason) for n, failure in self._failures.items()}
            states |= {number: State("AVAILABLE") for number in self._loaded}
            if self._loading is not None:
                states[self._loading] = State("LOADING")
            return dict(sorted(states.items(), reverse=True))

    def select_states(self, number: int | None) -> dict[int, State]:
        """Return {version: its state}, from the newest version to the oldest.

        Args:
          number: the only version to return; None for all versions.

        Raises:
          RequestError: the server has no version with this number.
        """
        states = self.list_states()
        if number is None:
            return states
        if number not in states:
            raise failures.RequestError(failures.NOT_FOUND, self._explain_absence(number))
        return {number: states[number]}

    def close(self) -> None:
        """Close all versions. A version that is in use is closed after its last request."""
        with self._polling:
            with self._lock:
                self._retired.update(self._loaded.values())
                self._loaded.clear()
            self._close_unused()


def make_loader(name: str) -> Callable[[int, str], Any]:
    """Return a function that loads a version of a model from its number and its folder.

    Args:
      name: the name under which clients call the model.
    """
    return lambda number, path: models.Model.load(name, number, path)
