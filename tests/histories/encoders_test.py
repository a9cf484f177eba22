"""Encoders of histories, each against a computation of its equations by NumPy."""

import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, histories
from mtl.step import outlets
from tests.optimization import training

tf1 = tf.compat.v1

SIZE = 4
LENGTHS = (3, 0, 1, 5)
RANDOM = np.random.default_rng(0)
EVENTS = [RANDOM.normal(size=[length, SIZE]).astype(np.float32) for length in LENGTHS]
TARGET = RANDOM.normal(size=[len(LENGTHS), SIZE]).astype(np.float32)
ENCODERS = {
    "mean": histories.Pooling(),
    "sum": histories.Pooling(kind="sum"),
    "max": histories.Pooling(kind="max"),
    "last": histories.Pooling(kind="last"),
    "gru": histories.GRU(units=3),
    "convolution": histories.Convolution(filters=3, sizes=[1, 2, 4]),
    "transformer": histories.Transformer(dimension=4, num_heads=2),
    "target": histories.TargetAttention(layers=[5, 3]),
    "softmax": histories.TargetAttention(layers=[5], normalization="softmax"),
    "hashed": histories.HashedAttention(num_hashes=12, width=2),
    "evolution": histories.InterestEvolution(units=3),
    "bst": histories.Transformer(dimension=4, num_heads=2, num_blocks=2, joins_target=True),
}
# These encode an empty history as 0; "bst" still adds the target.
_EMPTY_IS_ZERO = set(ENCODERS) - {"bst"}


def _draw(variable):
    seed = np.frombuffer(variable.op.name.encode(), np.uint8)
    return np.random.default_rng(seed).normal(size=variable.shape, scale=0.6)


class _Encoded:
    """An encoder in a separate session; the name of a variable seeds its values."""

    def __init__(self, encoder, width=SIZE):
        with tf.Graph().as_default() as graph:
            self._values = tf1.placeholder(tf.float32, [None, SIZE])
            self._lengths = tf1.placeholder(tf.int64, [None])
            self._target = tf1.placeholder(tf.float32, [None, width])
            given = tf.RaggedTensor.from_row_lengths(self._values, self._lengths)
            with outlets.show_predictions():
                self._made = encoder(given, self._target)
            self._told = outlets.take_predictions()
            assert self._made.shape.rank == 2 and self._made.shape[1] is not None
            weights = np.random.default_rng(1).normal(size=[len(EVENTS), self._made.shape[1]])
            self._loss = tf.reduce_sum(self._made * weights)
            found = tf.gradients(self._loss, [self._values, *tf1.global_variables()])
            assert all(gradient is not None for gradient in found)
            self._gradients = [tf.convert_to_tensor(gradient) for gradient in found]
            variables = {variable.op.name: variable for variable in tf1.global_variables()}
        self._session = tf1.Session(graph=graph)
        training.load(self._session, variables.values(), _draw)
        self.variables = self._session.run(variables)

    def encode(self, events=EVENTS, target=TARGET):
        """Return the encoding of each row, [B, width]."""
        return self._run(self._made, events, target)

    def differentiate(self, events=EVENTS):
        """Return a weighted sum of outputs, and its gradients by the events and each variable."""
        return self._run((self._loss, self._gradients), events, TARGET)

    def attend(self, events=EVENTS, target=TARGET):
        """Return the weights of events that predictions hold, [B, longest row]."""
        (attention,) = self._run(self._told, events, target).values()
        return attention

    def _run(self, fetches, events, target):
        lengths = [len(own) for own in events]
        fed = zip(
            (self._values, self._lengths, self._target),
            (np.concatenate(events), lengths, target),
            strict=True,
        )
        return self._session.run(fetches, dict(fed))

    def close(self):
        self._session.close()


@pytest.fixture(scope="module")
def encoded():
    """encoded(name): an encoder of the table, whose graph is built once."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(
            lambda name: stack.enter_context(contextlib.closing(_Encoded(ENCODERS[name])))
        )


@pytest.fixture(params=ENCODERS)
def name(request):
    return request.param


def test_no_row_depends_on_another_and_padding_on_nothing(name, encoded):
    whole = encoded(name).encode()
    for row, own in enumerate(EVENTS):
        alone = encoded(name).encode([own], TARGET[row : row + 1])
        np.testing.assert_allclose(alone[0], whole[row], rtol=1e-5, atol=1e-6)
    assert np.isfinite(whole).all()
    if name in _EMPTY_IS_ZERO:
        assert (whole[1] == 0).all() and (whole[[0, 3]] != 0).any(axis=1).all()


@pytest.mark.parametrize("name", ["target", "hashed", "bst", "evolution"])
def test_the_attention_of_a_row_is_to_its_own_events(name, encoded):
    whole = encoded(name).attend()
    assert whole.shape == (len(EVENTS), max(map(len, EVENTS)))
    for row, own in enumerate(EVENTS):
        assert (whole[row, len(own) :] == 0).all()
        if len(own):
            alone = encoded(name).attend([own], TARGET[row : row + 1])
            np.testing.assert_allclose(alone[0], whole[row, : len(own)], rtol=1e-5, atol=1e-6)
    assert (whole != 0).any()


def test_a_longer_row_beside_it_changes_nothing_of_a_row(name, encoded):
    """It widens what the others are padded to; a processor may then add up in another order."""
    longer = [*EVENTS[:3], RANDOM.normal(size=[61, SIZE]).astype(np.float32)]
    one, other = (encoded(name).encode(events) for events in (EVENTS, longer))
    np.testing.assert_allclose(other[:3], one[:3], rtol=1e-6, atol=1e-7)


def test_batches_without_an_event_are_encoded(name, encoded):
    nothing = [np.zeros([0, SIZE], np.float32)] * 2
    made = encoded(name).encode(nothing, TARGET[:2])
    assert np.isfinite(made).all()
    assert name not in _EMPTY_IS_ZERO or (made == 0).all()


@pytest.mark.medium
def test_gradients_are_those_of_finite_differences(name, encoded):
    encoder, step = encoded(name), 1e-2
    _, (of_events, *of_variables) = encoder.differentiate()
    for own in [of_events, *of_variables]:
        assert np.isfinite(own).all()
    for variable, own in zip(encoder.variables, of_variables, strict=True):
        assert np.abs(own).max() > 0, variable
    if name == "hashed":
        return  # Hashes jump.
    for row, place, number in ((0, 1, 2), (3, 4, 0), (2, 0, 3)):
        moved = []
        for sign in (-1, 1):
            events = [own.copy() for own in EVENTS]
            events[row][place, number] += sign * step
            moved.append(encoder.differentiate(events)[0])
        at = sum(LENGTHS[:row]) + place
        numeric = (moved[1] - moved[0]) / (2 * step)
        np.testing.assert_allclose(of_events[at, number], numeric, rtol=0.05, atol=0.02)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _gru(inputs, kernels, scope, shares=None):
    """All states, [L, units]."""
    kernel, bias = kernels[f"{scope}inputs/kernel"], kernels[f"{scope}inputs/bias"]
    recurrent = kernels[f"{scope}recurrent/kernel"]
    units = len(recurrent)
    state, states = np.zeros(units), []
    for place, event in enumerate(inputs):
        x = event @ kernel + bias
        update, reset = np.split(_sigmoid(x[: 2 * units] + state @ recurrent[:, : 2 * units]), 2)
        proposed = np.tanh(x[2 * units :] + (reset * state) @ recurrent[:, 2 * units :])
        update = update * (1 if shares is None else shares[place])
        state = (1 - update) * state + update * proposed
        states.append(state)
    return np.array(states)


def _softmax(x):
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def _weigh(events, target, v, num_layers):
    """The weights of DIN, one event after another."""
    found = []
    for event in events:
        hidden = np.concatenate([event, target, target - event, target * event])
        for layer in range(num_layers):
            hidden = _sigmoid(hidden @ v[f"hidden_{layer}/kernel"] + v[f"hidden_{layer}/bias"])
        found.append(hidden @ v["weight/kernel"] + v["weight/bias"])
    return np.array(found)


def _hashed(events, target, _):
    encoder = ENCODERS["hashed"]
    drawn = np.random.default_rng(0).normal(size=[SIZE, encoder.num_hashes])
    total = np.zeros(SIZE)
    for first in range(0, encoder.num_hashes, encoder.width):
        own = drawn[:, first : first + encoder.width]
        same = [e for e in events if ((e @ own > 0) == (target @ own > 0)).all()]
        added = np.sum(same, axis=0) if same else np.zeros(SIZE)
        total += added / max(np.linalg.norm(added), 1e-6)
    return total * encoder.width / encoder.num_hashes


def _convolve(events, _, v):
    found = []
    for size in (1, 2, 4):
        before = (size - 1) // 2
        around = np.pad(events, [[before, size - 1 - before], [0, 0]])
        kernel, bias = v[f"size_{size}/kernel"], v[f"size_{size}/bias"]
        windows = [around[i : i + size] for i in range(len(events))]
        made = [window.ravel() @ kernel + bias for window in windows]
        found.append(np.maximum(made, 0).max(axis=0))
    return np.concatenate(found)


def _evolve(events, target, v):
    states = _gru(events, v, "extraction/")
    attention = _softmax(states @ (target @ v["attention/kernel"]))
    return _gru(states, v, "evolution/", attention)[-1]


EQUATIONS = {
    "mean": lambda events, *_: events.mean(axis=0),
    "sum": lambda events, *_: events.sum(axis=0),
    "max": lambda events, *_: events.max(axis=0),
    "last": lambda events, *_: events[-1],
    "gru": lambda events, _, v: _gru(events, v, "")[-1],
    "convolution": _convolve,
    "target": lambda events, target, v: (_weigh(events, target, v, 2) * events).sum(axis=0),
    "softmax": lambda events, target, v: (_softmax(_weigh(events, target, v, 1)) * events).sum(
        axis=0
    ),
    "hashed": _hashed,
    "evolution": _evolve,
}


@pytest.mark.parametrize("of", EQUATIONS)
def test_outputs_are_those_of_the_equations(of, encoded):
    made, variables = encoded(of).encode(), encoded(of).variables
    for row, events in enumerate(EVENTS):
        if len(events):
            expected = EQUATIONS[of](events, TARGET[row], variables)
            np.testing.assert_allclose(made[row], expected, rtol=1e-4, atol=1e-5)


def test_a_transformer_is_that_of_keras(encoded):
    """One block by Keras' layers, with the same weights."""
    made, v = encoded("transformer").encode(), encoded("transformer").variables
    norm = lambda name: (v[f"{name}/gamma"], v[f"{name}/beta"])  # noqa: E731

    def normalise(x, name):
        gamma, beta = norm(name)
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    for row, events in enumerate(EVENTS):
        if not len(events):
            continue
        tokens = events @ v["event/kernel"] + v["event/bias"]
        given = normalise(tokens, "block_0/attention_norm")
        mixed = given @ v["block_0/attention/query_key_value/kernel"]
        mixed = (mixed + v["block_0/attention/query_key_value/bias"]).reshape([-1, 3, 2, 2])
        heads = []
        for head in range(2):
            queries, keys, values = (mixed[:, part, head] for part in range(3))
            weights = np.stack([_softmax(own) for own in queries @ keys.T / np.sqrt(2)])
            heads.append(weights @ values)
        joined = np.concatenate(heads, axis=1)
        tokens = tokens + joined @ v["block_0/attention/output/kernel"]
        tokens = tokens + v["block_0/attention/output/bias"]
        given = normalise(tokens, "block_0/feed_forward_norm")
        hidden = np.maximum(
            given @ v["block_0/feed_forward/hidden/kernel"] + v["block_0/feed_forward/hidden/bias"],
            0,
        )
        tokens = tokens + hidden @ v["block_0/feed_forward/output/kernel"]
        tokens = tokens + v["block_0/feed_forward/output/bias"]
        expected = normalise(tokens, "norm").mean(axis=0)
        np.testing.assert_allclose(made[row], expected, rtol=1e-4, atol=1e-5)


def test_a_target_of_another_width_is_projected():
    with contextlib.closing(_Encoded(ENCODERS["target"], width=2)) as encoder:
        made, variables = encoder.encode(target=TARGET[:, :2]), encoder.variables
    projected = TARGET[:, :2] @ variables["target/kernel"] + variables["target/bias"]
    expected = (_weigh(EVENTS[0], projected[0], variables, 2) * EVENTS[0]).sum(axis=0)
    np.testing.assert_allclose(made[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(checks.UserError, match="be as wide as an event, 4, for HashedAttention"):
        _Encoded(ENCODERS["hashed"], width=2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: histories.Pooling(kind="avg"), "Pooling.kind must be one of"),
        (lambda: histories.GRU(units=0), "GRU.units must"),
        (lambda: histories.Convolution(sizes=[]), "Convolution.sizes must hold a size"),
        (lambda: histories.Convolution(sizes=[2, 2]), "Convolution.sizes"),
        (lambda: histories.TargetAttention(layers=[]), "TargetAttention.layers must hold a layer"),
        (lambda: histories.TargetAttention(activation="rel"), "'relu'"),
        (lambda: histories.TargetAttention(normalization="sum"), "normalization must be one of"),
        (lambda: histories.HashedAttention(num_hashes=10), "be a multiple of 3, the width"),
        (lambda: histories.Transformer(dimension=6), "be a multiple of num_heads, 4"),
        (lambda: histories.InterestEvolution(units=1.5), "InterestEvolution.units must"),
    ],
)
def test_settings_that_make_no_sense(make, says):
    with pytest.raises(checks.UserError, match=says):
        make()
