"""Suggests changes to a run, by the numbers of its profile alone.

lines = advice.advise(found, advice.Settings(steps_per_call=1, combines=True))
"""

import dataclasses

from mtl.tools.profiling import profile, words

# Smallest shares of the wall time that cause advice.
_WAITING, _SURGERY, _BETWEEN, _SESSION, _ENCODE = 0.2, 0.25, 0.2, 0.15, 0.5
# With this many ops a step of this mean time, starting ops takes as long as running them.
_MANY_OPS, _SMALL_SECS = 500, 5e-6


@dataclasses.dataclass(frozen=True)
class Settings:
    """The current settings of the run.

    Attributes:
      steps_per_call: `Run.steps_per_call`; 1 if a strategy takes one step a call.
      may_repeat: True if several steps a call are possible.
      cache: `Pipeline.cache`.
      combines: True if the surgery is a `Combine` that decides at every step, on parameters.
      xla: `Precision.xla`.
    """

    steps_per_call: int = 100
    may_repeat: bool = True
    cache: bool = False
    combines: bool = False
    xla: bool = False


def advise(found: profile.Profile, settings: Settings) -> list[str]:
    """Return a line of advice for each remarkable share, or one line that says there are none."""
    lines = [
        *_of_input(found, settings),
        *_of_surgery(found, settings),
        *_of_calls(found, settings),
        *_of_small_ops(found, settings),
    ]
    encode = found.share(words.ENCODE)
    if encode > _ENCODE:
        lines.append(
            f"Encoding takes {encode:.0%}: the largest scopes above say which column. "
            "docs/tables.md has smaller tables, and a shorter history or text is cheaper."
        )
    if lines:
        return lines
    # Without waiting, the session and hooks, which have their own advice.
    rest = {word: found.share(word) for word in words.OPS}
    word = max(rest, key=lambda name: rest[name])
    return [
        f"Nothing stands out: most of a step is computing, above all {word} ({rest[word]:.0%})."
    ]


def _of_input(found: profile.Profile, settings: Settings) -> list[str]:
    waiting = found.share(words.WAITING)
    if waiting <= _WAITING:
        return []
    told = f"Steps wait for their batches for {waiting:.0%} of the time: "
    if settings.cache:
        return [told + "read TFRecords (tfrecord.TfRecord), whose records are cheap to decode."]
    return [
        told + "keep the records in memory, by Pipeline.cache = True, if the split fits; or read "
        "TFRecords (tfrecord.TfRecord), whose records are cheap to decode."
    ]


def _of_surgery(found: profile.Profile, settings: Settings) -> list[str]:
    own = found.share(words.BALANCING)
    back = found.wall.get(words.Place(words.NETWORK, True), 0.0)
    # A plain sum would take one of the `passes` backward passes through the network.
    more = back / found.total * (1 - 1 / found.passes) if found.total else 0.0
    # No advice for settings that the run has already changed.
    if own + more <= _SURGERY or not settings.combines:
        return []
    return [
        f"Surgery takes {own + more:.0%}: {own:.0%} itself, and {more:.0%} for {found.passes} "
        "passes back where a sum takes one. Combine.every_steps = 10 decides in every tenth step; "
        'Combine.on = "representation" ends the passes of the tasks at what they share.'
    ]


def _of_calls(found: profile.Profile, settings: Settings) -> list[str]:
    between, session = found.share(words.BETWEEN), found.share(words.SESSION)
    # Both shares count: each call pays for its start and for its hooks.
    if settings.steps_per_call == 1 and settings.may_repeat and between + session > _SESSION:
        return [
            f"Session calls take {between + session:.0%} beside their ops: Run.steps_per_call = "
            "100 takes so many steps in one call, with the same weights."
        ]
    if between > _BETWEEN:
        return [
            f"{between:.0%} of the time passes between session calls, in hooks, evaluations and "
            "saving: raise Run.summary_steps or Run.checkpoint_steps."
        ]
    return []


def _of_small_ops(found: profile.Profile, settings: Settings) -> list[str]:
    count = sum(found.num_ops.values())
    mean = sum(found.op_time.values()) / count if count else 0.0
    session = found.share(words.SESSION)
    if count / found.steps < _MANY_OPS or mean > _SMALL_SECS or session <= _SESSION:
        return []
    fix = "a larger Pipeline.batch_size makes more of each"
    if not settings.xla:
        fix += ", and on a GPU Precision.xla = True compiles the ops of the network into few"
    return [
        f"A step runs {count / found.steps:.0f} ops of {1e6 * mean:.1f} us each, and starting them "
        f"takes {session:.0%}: {fix}."
    ]
