"""Suggests changes to the settings of a run from the profile of its steps.

lines = advice.advise(profile, advice.Settings(steps_per_call=1, combines=True))
"""

import dataclasses

from mtl.tools.profiling import profile, words

# The smallest shares of the wall time from which a phase of the step gets advice.
_WAITING, _SURGERY, _BETWEEN, _SESSION, _ENCODE = 0.2, 0.25, 0.2, 0.15, 0.5
# If a step runs more ops than `_MANY_OPS`, and an op takes less than `_SMALL_SECS` on average,
# starting the ops takes as long as running them.
_MANY_OPS, _SMALL_SECS = 500, 5e-6


@dataclasses.dataclass(frozen=True)
class Settings:
    """The current settings of the run that advice may change.

    Attributes:
      steps_per_call: `Run.steps_per_call`; 1 if a strategy takes one step per session call.
      may_repeat: True if a session call may take several steps.
      cache: the value of `Pipeline.cache`.
      combines: True if the gradient surgery is a `Combine` that works at every step, on the
        gradients of parameters.
      xla: the value of `Precision.xla`.
    """

    steps_per_call: int = 100
    may_repeat: bool = True
    cache: bool = False
    combines: bool = False
    xla: bool = False


def advise(result: profile.Profile, settings: Settings) -> list[str]:
    """Return advice about the phases of a training step that take much time.

    Args:
      result: the profile of some training steps.
      settings: the current settings of the run.

    Returns:
      Lines of advice, or one line that says that nothing stands out.
    """
    lines = [
        *_of_input(result, settings),
        *_of_surgery(result, settings),
        *_of_calls(result, settings),
        *_of_small_ops(result, settings),
    ]
    encode = result.share(words.ENCODE)
    if encode > _ENCODE:
        lines.append(
            f"Encoding takes {encode:.0%}: the largest scopes above show which columns. Use "
            "smaller tables (docs/tables.md), or shorter histories or texts."
        )
    if lines:
        return lines
    # Look only at ops: other functions give advice about waiting, the session and hooks.
    op_shares = {word: result.share(word) for word in words.OPS}
    word = max(op_shares, key=lambda name: op_shares[name])
    return [
        f"Nothing stands out: steps spend most of their time in ops, mainly {word} "
        f"({op_shares[word]:.0%})."
    ]


def _of_input(result: profile.Profile, settings: Settings) -> list[str]:
    waiting = result.share(words.WAITING)
    if waiting <= _WAITING:
        return []
    problem = f"Steps wait for their batches for {waiting:.0%} of the time: "
    if settings.cache:
        return [problem + "read TFRecords (tfrecord.TfRecord), whose records are cheap to decode."]
    return [
        problem
        + "keep the records in memory with Pipeline.cache = True, if the split fits; or read "
        "TFRecords (tfrecord.TfRecord), whose records are cheap to decode."
    ]


def _of_surgery(result: profile.Profile, settings: Settings) -> list[str]:
    surgery = result.share(words.BALANCING)
    back = result.wall.get(words.Place(words.NETWORK, True), 0.0)
    # A plain sum of the losses would need one backward pass instead of `passes`.
    more = back / result.total * (1 - 1 / result.passes) if result.total else 0.0
    # Give no advice about settings that the run has already changed.
    if surgery + more <= _SURGERY or not settings.combines:
        return []
    return [
        f"Surgery takes {surgery + more:.0%}: {surgery:.0%} itself, and {more:.0%} because it "
        f"needs {result.passes} backward passes instead of one. With Combine.every_steps = 10 it "
        "decides "
        'only in every tenth step; with Combine.on = "representation" the passes of single tasks '
        "end at the shared representation."
    ]


def _of_calls(result: profile.Profile, settings: Settings) -> list[str]:
    between, session = result.share(words.BETWEEN), result.share(words.SESSION)
    # Add both shares, because every call costs time for its start and for its hooks.
    if settings.steps_per_call == 1 and settings.may_repeat and between + session > _SESSION:
        return [
            f"Session calls take {between + session:.0%} besides their ops: with "
            "Run.steps_per_call = 100, a call takes 100 steps, and the weights stay the same."
        ]
    if between > _BETWEEN:
        return [
            f"{between:.0%} of the time passes between session calls, in hooks, evaluations and "
            "saving: raise Run.summary_steps or Run.checkpoint_steps."
        ]
    return []


def _of_small_ops(result: profile.Profile, settings: Settings) -> list[str]:
    count = sum(result.num_ops.values())
    mean = sum(result.op_time.values()) / count if count else 0.0
    session = result.share(words.SESSION)
    if count / result.steps < _MANY_OPS or mean > _SMALL_SECS or session <= _SESSION:
        return []
    fix = "with a larger Pipeline.batch_size, each op does more work"
    if not settings.xla:
        fix += ", and on a GPU Precision.xla = True compiles the network into fewer ops"
    return [
        f"A step runs {count / result.steps:.0f} ops of {1e6 * mean:.1f} us each, and starting "
        f"them takes {session:.0%}: {fix}."
    ]
