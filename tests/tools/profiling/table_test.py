"""The table of a profile that is made up."""

import tensorflow as tf

from mtl.tools.profiling import memory, table, words
from tests.tools.profiling import made

tf1 = tf.compat.v1


def test_the_table_adds_up_and_says_what_to_try():
    text = table.write_table(made.make(WAITING=2.0, back=3.0, SESSION=1 / 3), ["Rest."])
    rows = {line[:18].strip(): line[18:].split() for line in text.splitlines() if "%" in line}
    assert rows["a step"][:2] == ["1000.000", "100.0%"]
    assert rows["waiting for input"][:2] == ["200.000", "20.0%"]
    assert rows["network"][:2] == ["766.667", "76.7%"]
    assert sum(float(row[1].rstrip("%")) for name, row in rows.items() if name != "a step") == 100.0
    assert text.startswith("Steps 101 to 110, in 1 session call. ")
    assert text.endswith("What to try:\n  - Rest.\n")


def test_the_headline_names_the_largest():
    assert table.tell_shortly(made.make(WAITING=4.0, ENCODE=1.0)) == (
        "1e+03 ms a step: network 50%, waiting for input 40%, encode 10%"
    )


def _node(name, allocations, size=0, dims=()):
    node = tf1.RunMetadata().step_stats.dev_stats.add().node_stats.add()
    node.node_name = name
    used = node.memory.add(allocator_name="cpu")
    for micros, count in allocations:
        used.allocation_records.add(alloc_micros=micros, alloc_bytes=count)
    if size:
        told = node.output.add().tensor_description
        told.allocation_description.allocated_bytes = size
        for dim in dims:
            told.shape.dim.add(size=dim)
    return node


def test_the_peak_is_told_by_who_holds_it():
    metadata = tf1.RunMetadata()
    nodes = metadata.step_stats.dev_stats.add().node_stats
    nodes.append(_node("network/a", [(1, 100), (5, -100)], size=100, dims=(5, 5)))
    nodes.append(_node("head/b", [(2, 60), (3, -60)], size=60))
    nodes.append(_node("network/c", [(3, 70), (9, -70)], size=70))
    place = {"n": words.Place(words.NETWORK), "h": words.Place(words.HEADS)}
    held = memory.find_peak(metadata, lambda name: place[name[0]])
    # At time 3, 60 bytes are freed before 70 are allocated: the peak is 170, not 230.
    assert (held.peak, held.by_word) == (170, {words.NETWORK: 170})
    assert held.largest[words.NETWORK] == memory.Tensor("network/a", 100, "[5, 5]")
    assert held.largest[words.HEADS].num_bytes == 60
    assert memory.find_peak(tf1.RunMetadata(), place.get) is None
