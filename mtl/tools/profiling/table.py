"""Writes a profile as a table, as JSON, or as one line.

print(table.write_table(found, advice.advise(found, settings)))
"""

from collections.abc import Sequence
from typing import Any

from mtl import aligned
from mtl.tools.profiling import profile, shares, words

_HEADER = ("", "wall ms", "share", "forward ms", "backward ms", "ops", "held MB")
_MEANING = """\
Wall ms adds up to a step: if n ops run at once, each counts 1/n of the time. Forward and
backward ms count the whole time of every op. The session is the time that TensorFlow takes to
start ops. Between calls, hooks run and checkpoints are saved."""
_SMALL_OPS = """Ops of less than 3 us, which TensorFlow's profiler leaves out, """
_WERE_TIMED = _SMALL_OPS + "were timed in the step after these ones."
_ARE_LEFT_OUT = _SMALL_OPS + "count as the session: a process of a cluster does not time them."
_MEANING_OF_GPU = """\
Wall ms adds up to a step: if n kernels run at once, each counts 1/n of the time. Forward and
backward ms add up the kernels. The session is the time in which no kernel runs."""


def write_table(found: profile.Profile, advice: Sequence[str]) -> str:
    """Return a row for each word of a step, the largest scopes and tensors, and the advice."""
    rows = _list_rows(found)
    lines = [_HEADER, *map(_write_row, rows), _write_sum(found, rows)]
    told = aligned.align_columns(lines, right=range(1, len(_HEADER)))
    advised = [f"  - {line}" for line in advice]
    meaning = [_MEANING_OF_GPU]
    if not found.has_gpu:
        # Memory and small ops come from the same traced step: without one, the other lacks too.
        meaning = [_MEANING, _ARE_LEFT_OUT if found.held is None else _WERE_TIMED]
    parts = [[_write_title(found)], told, meaning, _tell_scopes(found), _tell_memory(found)]
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


def _write_sum(found: profile.Profile, rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    forward, backward, ops = (
        sum(row[name] for row in rows) for name in ("forward_ms", "backward_ms", "ops")
    )
    return (
        "a step",
        f"{1000 * found.total / found.steps:.3f}",
        f"{sum(row['share'] for row in rows):.1f}%",
        _shorten_time(forward),
        _shorten_time(backward),
        f"{ops:.0f}",
        f"{found.held.peak / 1e6:.3f}" if found.held else "",
    )


def _write_title(found: profile.Profile) -> str:
    kind = "kernels of the GPU" if found.has_gpu else "ops of the CPU"
    calls = f"{found.calls} session {'call' if found.calls == 1 else 'calls'}"
    steps = f"Steps {found.first + 1} to {found.first + found.steps}, in {calls}"
    return f"{steps}. Times are per step, of {kind}."


def _tell_scopes(found: profile.Profile) -> list[str]:
    total = sum(found.op_time.values())
    if not found.scopes or not total:
        return []
    told = ", ".join(f"{name} {secs / total:.0%}" for name, secs in found.scopes)
    return [f"Largest scopes, by time in ops: {told}"]


def _tell_memory(found: profile.Profile) -> list[str]:
    if found.held is None:
        return []
    lines = [
        "Held MB: at the moment when the last step of the profile holds most "
        f"({found.held.allocator}),",
        "without variables. The largest tensor of each word:",
    ]
    for word in words.OPS:
        one = found.held.largest.get(word)
        if one is not None and one.num_bytes:
            lines.append(f"  {word:<20} {one.num_bytes / 1e6:>9.3f} MB  {one.shape} of {one.op}")
    return lines


def _list_rows(found: profile.Profile) -> list[dict[str, Any]]:
    """Return a row for each word that takes time or memory, per step."""
    walls = [sum(s for p, s in found.wall.items() if p.word == word) for word in words.ALL]
    rows = []
    for word, wall, share in zip(words.ALL, walls, shares.round_shares(walls), strict=True):
        forward, backward = words.Place(word), words.Place(word, is_backward=True)
        count = found.num_ops.get(forward, 0) + found.num_ops.get(backward, 0)
        row = {
            "word": word,
            "wall_ms": 1000 * wall / found.steps,
            "share": share,
            "forward_ms": 1000 * found.op_time.get(forward, 0.0) / found.steps,
            "backward_ms": 1000 * found.op_time.get(backward, 0.0) / found.steps,
            "ops": count / found.steps,
            "held_mb": found.held.by_word.get(word, 0) / 1e6 if found.held else 0.0,
        }
        # A word without ops, such as auxiliary losses in most runs, has no row.
        if wall or row["held_mb"]:
            rows.append(row)
    return rows


def _shorten_time(milliseconds: float) -> str:
    return f"{milliseconds:.3f}" if milliseconds else ""


def to_json(found: profile.Profile, advice: Sequence[str]) -> dict[str, Any]:
    """Return the profile as plain values, for programs; times are per step."""
    return {
        # `first` is the step after which the profile begins.
        "first_step": found.first + 1,
        "last_step": found.first + found.steps,
        "session_calls": found.calls,
        "step_ms": 1000 * found.total / found.steps,
        "words": _list_rows(found),
        "scopes_ms": {name: 1000 * secs / found.steps for name, secs in found.scopes},
        "passes_back": found.passes,
        "peak_bytes": found.held.peak if found.held else None,
        "advice": list(advice),
        "headline": tell_shortly(found),
    }


def tell_shortly(found: profile.Profile) -> str:
    """Return one line: the time of a step, and the three largest shares."""
    rows = sorted(_list_rows(found), key=lambda row: -row["share"])[:3]
    told = ", ".join(f"{row['word']} {row['share']:.0f}%" for row in rows)
    return f"{1000 * found.total / found.steps:.3g} ms a step: {told}"
