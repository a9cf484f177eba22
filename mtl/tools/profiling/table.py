"""Writes a profile of training steps as a table, as JSON, or as one line.

print(table.write_table(profile, advice.advise(profile, settings)))
"""

from collections.abc import Sequence
from typing import Any

from mtl import aligned
from mtl.tools.profiling import profile, shares, words

_HEADER = ("", "wall ms", "share", "forward ms", "backward ms", "ops", "held MB")
_MEANING = """\
Wall ms adds up to a step: if n ops run at the same time, each gets 1/n of the time. Forward and
backward ms count the full time of each op. The row "session" is the time that TensorFlow takes to
start ops. Between calls, hooks run and checkpoints are saved."""
_SMALL_OPS = """Ops of less than 3 us, which TensorFlow's profiler leaves out, """
_WERE_TIMED = _SMALL_OPS + "were timed in the step after these steps."
_ARE_LEFT_OUT = _SMALL_OPS + "count as the session, because they are not timed in a cluster."
_MEANING_OF_GPU = """\
Wall ms adds up to a step: if n kernels run at the same time, each gets 1/n of the time. Forward
and backward ms count the full time of each kernel. The row "session" is the time in which no
kernel runs."""


def write_table(result: profile.Profile, advice: Sequence[str]) -> str:
    """Return a table with a row for each phase, the largest scopes and tensors, and the advice.

    Args:
      result: the profile of some training steps.
      advice: lines of advice.
    """
    rows = _list_rows(result)
    lines = [_HEADER, *map(_write_row, rows), _write_sum(result, rows)]
    rows_as_text = aligned.align_columns(lines, right=range(1, len(_HEADER)))
    advised = [f"  - {line}" for line in advice]
    meaning = [_MEANING_OF_GPU]
    if not result.has_gpu:
        # One traced step gives the memory and the times of small ops: if the memory is missing, the
        # times of small ops are missing, too.
        meaning = [_MEANING, _ARE_LEFT_OUT if result.held is None else _WERE_TIMED]
    parts = [
        [_write_title(result)],
        rows_as_text,
        meaning,
        _tell_scopes(result),
        _tell_memory(result),
    ]
    parts.append(["What to try:", *advised])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _write_row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["word"],
        f"{row['wall_ms']:.3f}",
        f"{row['share']:.1f}%",
        _shorten_time(row["forward_ms"]),
        _shorten_time(row["backward_ms"]),
        f"{row['ops']:.0f}" if row["ops"] else "",
        f"{row['held_mb']:.3f}" if row["held_mb"] else "",
    )


def _write_sum(result: profile.Profile, rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    forward, backward, ops = (
        sum(row[name] for row in rows) for name in ("forward_ms", "backward_ms", "ops")
    )
    return (
        "a step",
        f"{1000 * result.total / result.steps:.3f}",
        f"{sum(row['share'] for row in rows):.1f}%",
        _shorten_time(forward),
        _shorten_time(backward),
        f"{ops:.0f}",
        f"{result.held.peak / 1e6:.3f}" if result.held else "",
    )


def _write_title(result: profile.Profile) -> str:
    kind = "kernels of the GPU" if result.has_gpu else "ops of the CPU"
    calls = f"{result.calls} session {'call' if result.calls == 1 else 'calls'}"
    steps = f"Steps {result.first + 1} to {result.first + result.steps}, in {calls}"
    return f"{steps}. Times are per step, of {kind}."


def _tell_scopes(result: profile.Profile) -> list[str]:
    total = sum(result.op_time.values())
    if not result.scopes or not total:
        return []
    text = ", ".join(f"{name} {secs / total:.0%}" for name, secs in result.scopes)
    return [f"Largest scopes, by time in ops: {text}"]


def _tell_memory(result: profile.Profile) -> list[str]:
    if result.held is None:
        return []
    lines = [
        f"Held MB: the memory in use at the peak of the last step ({result.held.allocator}),",
        "without variables. The largest tensor of each phase:",
    ]
    for word in words.OPS:
        tensor = result.held.largest.get(word)
        if tensor is not None and tensor.num_bytes:
            lines.append(
                f"  {word:<20} {tensor.num_bytes / 1e6:>9.3f} MB  {tensor.shape} of {tensor.op}"
            )
    return lines


def _list_rows(result: profile.Profile) -> list[dict[str, Any]]:
    """Return a row for each phase that takes time or memory, with values per step."""
    walls = [sum(s for p, s in result.wall.items() if p.word == word) for word in words.ALL]
    rows = []
    for word, wall, share in zip(words.ALL, walls, shares.round_shares(walls), strict=True):
        forward, backward = words.Place(word), words.Place(word, is_backward=True)
        count = result.num_ops.get(forward, 0) + result.num_ops.get(backward, 0)
        row = {
            "word": word,
            "wall_ms": 1000 * wall / result.steps,
            "share": share,
            "forward_ms": 1000 * result.op_time.get(forward, 0.0) / result.steps,
            "backward_ms": 1000 * result.op_time.get(backward, 0.0) / result.steps,
            "ops": count / result.steps,
            "held_mb": result.held.by_word.get(word, 0) / 1e6 if result.held else 0.0,
        }
        # Leave out phases without ops, such as auxiliary losses in most runs.
        if wall or row["held_mb"]:
            rows.append(row)
    return rows


def _shorten_time(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds else ""


def to_json(result: profile.Profile, advice: Sequence[str]) -> dict[str, Any]:
    """Return a profile as a dictionary for JSON, with times per step in milliseconds."""
    return {
        # `first` is the last step before the profile.
        "first_step": result.first + 1,
        "last_step": result.first + result.steps,
        "session_calls": result.calls,
        "step_ms": 1000 * result.total / result.steps,
        "words": _list_rows(result),
        "scopes_ms": {name: 1000 * secs / result.steps for name, secs in result.scopes},
        "passes_back": result.passes,
        "peak_bytes": result.held.peak if result.held else None,
        "advice": list(advice),
        "headline": tell_shortly(result),
    }


def tell_shortly(result: profile.Profile) -> str:
    """Return one line with the time of a step and the three phases with the largest shares."""
    rows = sorted(_list_rows(result), key=lambda row: -row["share"])[:3]
    text = ", ".join(f"{row['word']} {row['share']:.0f}%" for row in rows)
    return f"{1000 * result.total / result.steps:.3g} ms a step: {text}"
