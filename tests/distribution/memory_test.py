import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import csv, pipeline
from mtl.distribution import memory
from mtl.variables import stacks


@pytest.fixture
def group(tmp_path, monkeypatch):
    """group(line of /proc/self/cgroup, {path: limit}) lays out the files of control groups."""
    monkeypatch.setattr(memory, "_GROUPS", str(tmp_path))
    true = memory._read

    def lay_out(line, limits):
        for path, limit in limits.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(f"{limit}\n")
        told = {
            "/proc/self/cgroup": line + "\n",
            "/proc/meminfo": "MemTotal: 8 kB\nSwapTotal: 2 kB",
        }
        monkeypatch.setattr(memory, "_read", lambda path: told.get(path) or true(path))

    return lay_out


@pytest.mark.parametrize(
    "line, limits, expected",
    [
        ("0::/", {}, 10),
        ("0::/a/b", {"memory.max": "max", "a/memory.max": 5120, "a/b/memory.max": 6144}, 7),
        ("0::/of/the/host", {"memory.max": 3072}, 5),
        ("4:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": 4096}, 6),
        ("4:cpu:/a", {"memory/a/memory.limit_in_bytes": 4096}, 10),
        ("4:memory:/", {"memory/memory.limit_in_bytes": 2**63 - 4096}, 10),
    ],
)
def test_the_limit_is_the_least_of_machine_and_groups_and_swap(group, line, limits, expected):
    group(line, limits)
    assert memory.find_limit() == expected * 1024


def test_nothing_is_refused_where_nobody_tells_the_limit(monkeypatch):
    monkeypatch.setattr(memory, "_read", lambda path: "")
    memory.require_memory("a", 1, 1e30, "it takes")


def _pipeline(**settings):
    fields = spec.Spec(
        features={"x": ("float32", (10,)), "job": "string", "tags": ("string", (None,))},
        labels={"y": "int64"},
    )
    source = csv.Csv(files={"train": "x"})
    return pipeline.Pipeline(source=source, spec=fields, cache=False, **settings)


@pytest.mark.parametrize(
    "settings, size",
    [
        # A record, ten floats, a text, the start of a list, and a label.
        ({"batch_size": 1000, "shuffle_buffer": 1}, 1000 * (24 + 40 + 24 + 8 + 8)),
        ({"batch_size": 1, "shuffle_buffer": 5000}, 5000 * 24),
    ],
)
def test_what_does_not_fit_is_refused_and_what_just_fits_is_not(monkeypatch, settings, size):
    made = _pipeline(**settings)
    monkeypatch.setattr(memory, "find_limit", lambda: size)
    made.require_memory(made.batch_size)
    monkeypatch.setattr(memory, "find_limit", lambda: size - 1)
    name = max(settings, key=settings.get)
    with pytest.raises(checks.UserError, match=f"Pipeline.{name} must fit into memory, got"):
        made.dataset("train", training=True, seed=1)


def test_one_pass_takes_room_for_the_records_of_a_batch_only(monkeypatch):
    monkeypatch.setattr(memory, "find_limit", lambda: 1000 * 24)
    _pipeline(batch_size=1000, shuffle_buffer=10**6).require_memory(1000, training=False)
    with pytest.raises(checks.UserError, match=r"A batch of 1001 rows takes at least"):
        _pipeline(batch_size=1001).one_pass("train")


def test_variables_are_told_by_the_largest():
    with tf.Graph().as_default():
        tf.compat.v1.get_variable("small", [3])
        memory.require_variables(tf.compat.v1.global_variables())
        tf.compat.v1.get_variable("features/x/embedding", [10**12, 8])
        with pytest.raises(checks.UserError) as error:
            memory.require_variables(tf.compat.v1.global_variables())
    told = "variable 'features/x/embedding' must fit into memory, got (1000000000000, 8). "
    told += "It is the largest of 2 variables, which take at least 32,000 GB, and this process may"
    assert str(error.value).startswith(told)


def test_a_stack_is_told_with_its_members():
    with tf.Graph().as_default():
        tf.compat.v1.get_variable("small", [3])
        zeros = tf.compat.v1.zeros_initializer()
        stacks.create(["head/a", "head/b"], "logits/bias", [2, 10**13], 0, zeros)
        with pytest.raises(checks.UserError) as error:
            memory.require_variables(tf.compat.v1.global_variables())
    told = (
        "variable 'head/a/logits/bias' with 1 like it must fit into memory, got (2, 1000000000000"
    )
    assert str(error.value).startswith(told)
    assert "It is the largest of 3 variables" in str(error.value)
