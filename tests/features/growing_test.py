"""Tables that grow: every change beside a plain simulation, key by key."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features
from mtl.features import encoding, key_table

tf1 = tf.compat.v1

DIMENSION = 3


def _draw_words(step, rng):
    """Words whose range drifts, so that old ones go stale; one in eight is empty."""
    numbers = np.minimum(rng.geometric(0.15, 24), 40) + 2 * step
    return np.array([b"" if rng.random() < 0.125 else b"w%d" % n for n in numbers], object)


def _hash(words):
    with tf.Graph().as_default(), tf1.Session() as session:
        keys = session.run(key_table.make_keys(tf.constant(words)))
    return dict(zip(words, keys.tolist(), strict=True))


class Simulation:
    """The expected content of a table after each step."""

    def __init__(self, capacity, eviction=None, min_count=1):
        self.capacity, self.eviction, self.min_count = capacity, eviction, min_count
        self.keys = [0] * capacity
        self.last_seen, self.comings = [0] * capacity, [0] * capacity
        self.sketch = [0] * (4 * capacity)

    def buckets(self, key):
        count = self.capacity // 8
        return [key % count, key // count % count]

    def places(self, key):
        size = len(self.sketch)
        return [key % size, key // size % size]

    def step(self, keys, step, norms):
        """Take in a batch of keys; return the rows that were evicted."""
        counts = collections.Counter(key for key in keys if key)
        known = {key: self.keys.index(key) for key in counts if key in self.keys}
        before, score, taken, evicted = list(self.keys), {}, collections.Counter(), []
        for row in range(self.capacity):
            kinds = {"age": self.last_seen[row], "count": self.comings[row], "norm": norms[row]}
            score[row] = kinds.get(self.eviction, np.inf)
            if row in known.values():
                score[row] = np.inf
            if not before[row]:
                score[row] = -1
        fresh = sorted(key for key in counts if key not in known)
        so_far = {key: min(self.sketch[place] for place in self.places(key)) for key in fresh}
        for key in fresh:
            own = counts[key] + (so_far[key] if self.min_count > 1 else 0)
            for place in self.places(key):
                self.sketch[place] = max(self.sketch[place], own)
            if own < self.min_count:
                continue
            options = []
            for number, bucket in enumerate(self.buckets(key)):
                rows = range(8 * bucket, 8 * bucket + 8)
                scores = {
                    row: np.inf if self.eviction == "count" and score[row] > own else score[row]
                    for row in rows
                }
                free = sum(not before[row] for row in rows)
                options.append((-free, min(scores.values()), number, scores))
            scores = min(options, key=lambda option: option[:3])[3]
            bucket = min(scores) // 8
            rows = sorted(scores, key=lambda row: (scores[row], row))
            place, taken[bucket] = taken[bucket], taken[bucket] + 1
            if place < 8 and scores[rows[place]] < np.inf:
                row = rows[place]
                evicted += [row] if before[row] else []
                self.keys[row], known[key] = key, row
                self.comings[row] = own - counts[key]
        for key, row in known.items():
            self.last_seen[row] = step
            self.comings[row] += counts[key]
        return evicted


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"eviction": "age"},
        {"eviction": "count"},
        {"eviction": "norm"},
        {"eviction": "age", "min_count": 3},
        {"eviction": "count", "min_count": 2},
    ],
    ids=str,
)
def test_a_table_holds_what_a_simulation_does(settings):
    column = features.Growing(names=["word"], capacity=32, dimension=DIMENSION, **settings)
    simulated = Simulation(32, **settings)
    rng, lost = np.random.default_rng(1), 0
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(3)
        step = tf1.train.get_or_create_global_step()
        words = tf1.placeholder(tf.string, [None])
        fields = {"word": words}
        encoded = features.encode_columns([column], fields, features.load_statistics(""))
        loss = tf.reduce_sum(encoded["growing_word"] ** 2)
        optimizer = tf1.train.AdagradOptimizer(0.1, initial_accumulator_value=0.5)
        moved = optimizer.minimize(loss)
        changed = features.grow_tables([column], fields, moved)
        variables = {v.op.name.split("growing_word/")[-1]: v for v in tf1.global_variables()}
        session.run(tf1.global_variables_initializer())
        with tf.control_dependencies([changed]):
            stepped = step.assign_add(1, read_value=False)
        # The accumulators of rows that are in no batch stay at 0.5.
        for number in range(40):
            table, slot = session.run([variables["embedding"], variables["embedding/Adagrad"]])
            given = _draw_words(number, rng)
            hashed = _hash(given)
            session.run(stepped, {words: given})
            held = session.run({n: v for n, v in variables.items() if n != "global_step"})
            norms = np.linalg.norm(table[:32].astype(np.float64), axis=1)
            evicted = simulated.step([hashed[word] for word in given], number, norms)
            assert held["keys"].reshape(-1).tolist() == simulated.keys, number
            assert held["size"] == np.count_nonzero(simulated.keys)
            for name in ("last_seen", "comings"):
                if name in held:
                    is_held = held["keys"].reshape(-1) > 0
                    expected = np.array(getattr(simulated, name))
                    np.testing.assert_array_equal(held[name][is_held], expected[is_held])
            lost += len(evicted)
            now, moments = held["embedding"], held["embedding/Adagrad"]
            assert (moments[evicted] == 0.5).all()
            stayed = [row for row in range(33) if row not in evicted]
            assert (moments[stayed] >= slot[stayed]).all()
            for row in evicted:
                assert np.abs(now[row] - table[row]).min() > 1e-6
                assert 0 < np.abs(now[row]).max() < 2 * DIMENSION**-0.5
    assert (lost > 10) == bool(settings.get("eviction"))


def test_keys_are_known_from_the_next_step_on_and_unknown_ones_share_rows():
    column = features.Growing(names=["word"], capacity=8, dimension=2, num_unknown=2)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        words = tf1.placeholder(tf.string, [None])
        fields = {"word": words}
        encode = lambda: features.encode_columns([column], fields, features.load_statistics(""))  # noqa: E731
        encoded = encode()["growing_word"]
        changed = features.grow_tables([column], fields, tf.no_op())
        session.run(tf1.global_variables_initializer())
        table = session.run(tf1.trainable_variables()[0])
        given = np.array([b"a", b"b", b"a", b""], object)
        first = session.run(encoded, {words: given})
        assert all(any((row == own).all() for own in table[8:]) for row in first)
        session.run(changed, {words: given})
        then = session.run(encoded, {words: given})
        assert (then[0] == then[2]).all() and not (then[0] == then[1]).all()
        assert all(any((row == own).all() for own in table[:8]) for row in then[:3])
        assert (then[3] == first[3]).all()


def test_a_rate_admits_a_share_of_what_comes():
    column = features.Growing(names=["word"], capacity=8000, dimension=1, admission_rate=0.25)
    words = np.array([b"%d" % number for number in range(2000)], object)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        step = tf1.train.get_or_create_global_step()
        fields = {"word": tf.constant(np.concatenate([words, words]))}
        features.encode_columns([column], fields, features.load_statistics(""))
        changed = features.grow_tables([column], fields, tf.no_op())
        session.run(tf1.global_variables_initializer())
        size = next(v for v in tf1.global_variables() if v.op.name.endswith("/size"))
        for number in (1, 2):
            session.run(changed)
            session.run(step.assign_add(1))
            # A key that comes twice a step stays out with 0.75 ** 2.
            expected = 2000 * (1 - 0.75 ** (2 * number))
            assert abs(session.run(size) - expected) < 5 * np.sqrt(expected)


def test_columns_and_histories_share_a_table():
    settings = {"capacity": 16, "dimension": 2, "table": "items"}
    history = features.History(
        name="clicks",
        events=[features.Growing(names=["clicked"], **settings)],
        encoder=_Sum(),
        last=1,
    )
    columns = [features.Growing(names=["item"], **settings), history]
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        clicked = tf.ragged.constant([["old", "b"], ["c"], []], row_splits_dtype=tf.int64)
        fields = {"item": tf.constant(["a", "b", ""]), "clicked": clicked}
        encoded = features.encode_columns(columns, fields, features.load_statistics(""))
        changed = features.grow_tables(columns, fields, tf.no_op())
        session.run(tf1.global_variables_initializer())
        names = {v.op.name for v in tf1.global_variables()} - {"global_step"}
        assert names == {f"features/items/{own}" for own in ("embedding", "keys", "size")}
        session.run(changed)
        (keys,) = [v for v in tf1.global_variables() if v.op.name.endswith("/keys")]
        # Events that `last` cuts off are not looked up, and get no row.
        held = session.run(keys)
        assert {*held[held > 0].tolist()} == {*_hash([b"a", b"b", b"c"]).values()}
        found = session.run(encoded)
        assert (found["clicks"][0] == found["growing_item"][1]).all()


class _Sum:
    def __call__(self, events, target):
        del target
        return tf.reduce_sum(events, axis=1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"capacity": 7}, "Growing.capacity must be"),
        ({"capacity": 2**31}, "Growing.capacity must be at most"),
        ({"dimension": None}, "Growing.dimension must be a whole number"),
        ({"min_count": 0}, "Growing.min_count must"),
        ({"admission_rate": 0}, r"Growing.admission_rate must be in \(0, 1\]"),
        ({"eviction": "lru"}, "Growing.eviction must be one of age, count, norm"),
        ({"num_unknown": 0}, "Growing.num_unknown must"),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(checks.UserError, match=says):
        features.Growing(**{"names": ["word"], "capacity": 8, **settings})


def test_a_table_has_one_capacity():
    columns = [
        features.Growing(names=[field], capacity=capacity, table="items")
        for field, capacity in (("item", 8), ("last", 16))
    ]
    with pytest.raises(
        checks.UserError, match="must have the same Growing.capacity in all columns, got '8 and 16'"
    ):
        encoding.check_columns(columns, {"item": 0, "last": 0})
    with pytest.raises(checks.UserError, match="The field holds float32"), tf.Graph().as_default():
        column = features.Growing(names=["x"], capacity=8)
        features.encode_columns([column], {"x": tf.zeros([2])}, features.load_statistics(""))
