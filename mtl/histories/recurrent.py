"""Recurrent encoders of events: GRU, and the interest evolution of DIEN."""

from __future__ import annotations

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.histories import padded
from mtl.step import draws, outlets

_NEXT_EVENT = "_next_event"


@checks.dataclass
class GRU(types.HistoryEncoder):
    """A gated recurrent unit: the state after the last event, [B, (L), D] -> [B, units].

    The unit is from Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for
    Statistical Machine Translation", EMNLP 2014, arXiv:1406.1078. As in the paper, the reset gate
    is applied to the state before the matrix product. The output for a row without events is 0.
    Events are processed in sequence, so the time of a training step grows with the length of
    histories.

    Attributes:
      units: the length of the state vector.
    """

    units: checks.Count = 32

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Run the GRU over the events of each row, [B, (L), D] -> [B, units]."""
        del target
        return _run_gru(*padded.pad_events(events), self.units)[0]


@checks.dataclass
class InterestEvolution(types.HistoryEncoder):
    """The interest evolution of DIEN: a GRU over events, and a GRU with attention over its states.

    The encoder is from Zhou et al., "Deep Interest Evolution Network for Click-Through Rate
    Prediction", AAAI 2019, arXiv:1809.03672. For the states s[t] of the first GRU and the target e,
    the attention weights a[t] are the softmax of `s[t] W e` over the events t. The second GRU
    (AUGRU) multiplies its update gate by a[t]. The output for a row without events is 0.

    The auxiliary loss `<history>_next_event` trains the states of the first GRU to distinguish the
    next event from a random event e'. For the states s[t], the next event e[t + 1], a trained
    matrix V and a bias b, the loss is the mean of `softplus(-(s[t] V + b) e[t + 1]) +
    softplus((s[t] V + b) e')` over the events of a row except the first. The random event e' is
    drawn from all events of a slice of the batch (`Run.micro_batches`). In the paper, the random
    event is an item that was not clicked, and the code of the authors has a network instead of the
    matrix V and the bias b.

    Attributes:
      units: the length of the states of both GRUs. The variables of the first GRU are in
        `extraction`, those of the second in `evolution`, the matrix W in `attention`, and V and
        b in `next_event`.
      next_event_weight: the weight of the auxiliary loss, at least 0; 0 omits the loss. The paper
          uses the weight 1.
    """

    units: checks.Count = 32
    next_event_weight: checks.NotNegative = 0.0

    needs_target = True
    weighs_events = True
    are_emitted_rows_apart = False  # The auxiliary loss draws random events from other rows.

    def name_losses(self, history: str) -> dict[str, float]:
        """Return {name of the auxiliary loss: weight} for a history; empty if the weight is 0."""
        weight = self.next_event_weight
        return {f"{history}{_NEXT_EVENT}": weight} if weight else {}

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Run both GRUs on events [B, (L), D] and targets [B, T]: -> [B, units]."""
        values, is_event = padded.pad_events(events)
        with tf1.variable_scope("extraction"):
            states = _run_gru(values, is_event, self.units)[1]
        if self.next_event_weight:
            history = tf1.get_variable_scope().name.rpartition("/")[2]
            outlets.add_loss(
                f"{history}{_NEXT_EVENT}",
                lambda: _tell_next_events(states, values, is_event, events.flat_values),
            )
        queries = layers.dense(target, self.units, "attention", use_bias=False)
        scores = tf.linalg.matvec(states, queries)
        # Use the lowest number instead of -inf, which would give NaN for a row without events.
        scores = tf.where(is_event, scores, tf.fill(tf.shape(scores), scores.dtype.min))
        weights = tf.nn.softmax(scores)
        outlets.add_prediction("attention", weights * tf.cast(is_event, weights.dtype))
        with tf1.variable_scope("evolution"):
            return _run_gru(states, is_event, self.units, weights)[0]


def _tell_next_events(
    states: tf.Tensor, values: tf.Tensor, is_event: tf.Tensor, pool: tf.Tensor
) -> tf.Tensor:
    """Compute the next-event loss of each row, [B]; 0 for a row with less than two events.

    Args:
      states: the state of the first GRU after each event, [B, L, units].
      values: the events, [B, L, D].
      is_event: a mask of the events, bool [B, L].
      pool: all events, [N, D], from which random events are drawn.
    """
    size = values.shape[2]
    predicted_events = layers.dense(states[:, :-1], size, "next_event")
    is_next = tf.cast(is_event[:, 1:], values.dtype)
    # If there are no events, draws return this row of zeros; all losses are then 0.
    pool = tf.concat([pool, tf.zeros([1, size], pool.dtype)], 0)
    count = tf.maximum(tf.shape(pool)[0] - 1, 1)
    places = tf.random.stateless_uniform(
        tf.shape(is_next), draws.make_step_seed("next_event"), 0, count, tf.int32
    )
    others = tf.gather(pool, places)
    losses = tf.nn.softplus(-tf.reduce_sum(predicted_events * values[:, 1:], -1))
    losses += tf.nn.softplus(tf.reduce_sum(predicted_events * others, -1))
    total = tf.reduce_sum(is_next * losses, 1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(is_next, 1))


def _run_gru(
    values: tf.Tensor, is_event: tf.Tensor, units: int, attention: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Run a GRU; return the last state [B, units], and all states [B, L, units].

    Args:
      values: the events, [B, L, D].
      is_event: a mask of the events, bool [B, L]; padding does not change the state.
      units: the length of the state vector.
      attention: the factor of the update gate at each event, [B, L]; None means a factor of 1.
    """
    # [L, B, 3 units], as `tf.scan` iterates over the first axis.
    steps = tf.transpose(layers.dense(values, 3 * units, "inputs"), [1, 0, 2])
    shape, dtype = [units, 3 * units], values.dtype
    gates, candidate = tf.split(
        tf1.get_variable("recurrent/kernel", shape, dtype), [2 * units, units], 1
    )
    shares = tf.cast(is_event, dtype) if attention is None else attention
    shares = tf.transpose(tf.where(is_event, shares, tf.zeros_like(shares)))[:, :, tf.newaxis]

    def move(state: tf.Tensor, step_inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        inputs, share = step_inputs
        update, reset = tf.split(
            tf.sigmoid(inputs[:, : 2 * units] + tf.linalg.matmul(state, gates)), 2, axis=1
        )
        new_state = tf.tanh(inputs[:, 2 * units :] + tf.linalg.matmul(reset * state, candidate))
        next_state = state + share * update * (new_state - state)
        # `tf.scan` fails if the static shape of the state changes.
        return tf.ensure_shape(next_state, state.shape)

    states = tf.scan(move, (steps, shares), tf.zeros_like(steps[0, :, :units]))
    return states[-1], tf.transpose(states, [1, 0, 2])
