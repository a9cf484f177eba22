"""Texts: fields or entries of lists, the first tokens that count, and tables of tokens."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, histories, types
from mtl.features import tokenizers
from mtl.variables import row_names

tf1 = tf.compat.v1
NOTHING = features.Statistics(directory="", entries={})


def _text(**settings):
    required = {
        "names": ["x"],
        "tokenizer": tokenizers.Bytes(),
        "encoder": histories.Pooling(kind="sum"),
        "dimension": 2,
    }
    return features.Text(**required | settings)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array(["ab", "", "é"], object), [97 + 98, 0, 0xC3 + 0xA9]),
        # A list is one text, with spaces between; one without an entry has none.
        ([["a", "b"], [], ["c"]], [97 + 32 + 98, 0, 99]),
        (np.array([["a", "b"], ["", "c"]], object), [97 + 32 + 98, 32 + 99]),
    ],
)
def test_a_text_is_a_field_or_the_entries_of_a_list(encode, values, expected):
    encoded = encode([_text()], {"x": values})["text_x"]
    assert encoded.shape == (len(expected), 2) and encoded[:, 0].tolist() == expected


def test_a_text_can_be_an_event_of_a_history(encode):
    history = features.History(name="titles", events=[_text()], encoder=histories.Pooling())
    encoded = encode([history], {"x": [["ab", "c"], []]})["titles"]
    assert encoded[:, 0].tolist() == [(97 + 98 + 99) / 2, 0]


def test_the_first_tokens_count_and_know_their_places(encode):
    column = _text(max_tokens=3, place_dimension=1, names=["x", "y"])
    batch = {name: np.array(["abcdef", "b", ""], object) for name in ("x", "y")}
    encoded = encode([column], batch)
    for output in ("text_x", "text_y"):
        assert encoded[output].tolist() == [[97 + 98 + 99, 3, 0 + 1 + 2], [98, 1, 0], [0, 0, 0]]


@pytest.mark.medium
@pytest.mark.parametrize(
    "encoder",
    [
        histories.Convolution(filters=3, sizes=[1, 2]),
        histories.GRU(units=4),
        histories.Transformer(dimension=4, num_heads=2),
    ],
    ids=lambda encoder: type(encoder).__name__,
)
def test_a_row_does_not_hang_on_others_and_gradients_of_tables_are_sparse(encoder):
    column = _text(encoder=encoder, max_tokens=5, place_dimension=2)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        texts = tf1.placeholder(tf.string, [None])
        encoded = features.encode_columns([column], {"x": texts}, NOTHING)["text_x"]
        assert encoded.shape[1] is not None
        tables = [v for v in tf1.global_variables() if v.op.name.endswith(("embedding", "place"))]
        assert [table.op.name for table in tables] == [
            "features/text_x/embedding",
            "features/text_x/place",
        ]
        for gradient in tf.gradients(encoded, tables):
            assert isinstance(gradient, tf.IndexedSlices)
        session.run(tf1.global_variables_initializer())
        rows = ["abc", "", "a longer one", "b"]
        together = session.run(encoded, {texts: rows})
        alone = [session.run(encoded, {texts: [row]})[0] for row in rows]
        shuffled = session.run(encoded, {texts: ["cab"]})[0]
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    assert np.abs(shuffled - together[0]).max() > 1e-3  # The order of tokens counts.


def test_a_row_of_the_table_moves_as_often_as_its_token_counts():
    texts = ["abca", "", "a\0", "xxxxxxxx"]
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = {"x": tf.constant(texts)}
        encoded = features.encode_columns([_text(max_tokens=5)], fed, NOTHING)["text_x"]
        (gradient,) = tf.gradients(encoded, tf1.trainable_variables())
        found = session.run(tf.convert_to_tensor(gradient))
    kept = b"".join(text.encode()[:5] for text in texts)
    counts = np.bincount(np.frombuffer(kept, np.uint8), minlength=256)
    np.testing.assert_array_equal(found, np.stack([counts, counts], axis=1))


def test_rows_of_the_table_have_names_and_other_variables_have_none(fit):
    column = _text(tokenizer=tokenizers.Words(min_count=1))
    fitted = fit([column], {"x": np.array(["b a b"], object)})
    named = {f"features/{name}/": names for name, names in column.row_names(fitted).items()}
    names = row_names.find_row_names(named, "features/text_x/embedding")
    assert row_names.read_names(names) == ["b", "a"]
    slot = "features/text_x/embedding/Adam"
    assert row_names.find_row_names(named, slot) is names
    for other in ("features/text_x/kernel", "features/text_x/embedding_2", "features/text"):
        assert row_names.find_row_names(named, other) is None
    assert _text().row_names(NOTHING) == {}


def test_files_are_those_of_the_vocabulary_and_the_vectors():
    given = _text(tokenizer=tokenizers.WordPiece(vocabulary="vocab.txt"), word_vectors="glove.txt")
    assert given.files == {"text_x": "vocab.txt", "text_x/word_vectors": "glove.txt"}
    assert _text().files == {} and _text().accumulators() == {}


@dataclasses.dataclass(frozen=True)
class Own:
    """A tokenizer of a user's, which leaves out what has a default."""

    def __call__(self, texts, name, fitted):
        cut = tf.strings.split(texts, ";")
        return cut.with_flat_values(tf.strings.to_hash_bucket_fast(cut.flat_values, 9))

    def num_tokens(self, name, fitted):
        return 9


def test_a_tokenizer_of_ones_own(encode):
    column = _text(tokenizer=Own())
    encoded = encode([column], {"x": np.array(["a;a", "a"], object)})["text_x"]
    assert encoded[0, 0] == 2 * encoded[1, 0] > 0 and column.files == {}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tokenizer": tokenizers.Bytes}, "Text.tokenizer must be a part such as @tokenizers"),
        ({"tokenizer": histories.Pooling()}, "Text.tokenizer must be a part"),
        ({"encoder": histories.Pooling}, "Text.encoder must be a part such as @histories"),
        (
            {"encoder": histories.TargetAttention()},
            "be an encoder without a target, got 'TargetAtt",
        ),
        ({"place_dimension": 4}, "Text.max_tokens must be set if Text.place_dimension is set"),
        ({"max_tokens": 0}, "Text.max_tokens must be at least 1"),
        ({"dimension": None}, "Text.dimension must be a whole number"),
        ({"word_vectors": "x"}, "Text.word_vectors must be None if .* Bytes has none"),
        ({"word_vectors": 3}, "Text.word_vectors must be a text"),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(checks.UserError, match=says):
        _text(**settings)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([1, 2]), "Text.names must name fields of strings, got 'x'. The field holds int"),
        (np.array([[["a"]]], object), "Text.names must name fields of texts or of lists of texts"),
    ],
)
def test_fields_that_are_no_texts(encode, values, says):
    with pytest.raises(checks.UserError, match=says):
        encode([_text()], {"x": values})


class _Own(types.Tokenizer):
    """A tokenizer that returns what it is told to."""

    def __init__(self, change, size=256):
        self.change, self.size = change, size

    def __call__(self, texts, name, fitted):
        return self.change(tf.strings.bytes_split(texts))

    def num_tokens(self, name, fitted):
        return self.size


def _hash(letters):
    return tf.strings.to_hash_bucket_fast(letters, 256)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (_Own(lambda letters: None), "_Own must return a tf.RaggedTensor of ids, .*, got None"),
        (_Own(lambda letters: _hash(letters).to_tensor()), "_Own must return a tf.RaggedTensor"),
        (_Own(lambda letters: letters), "_Own must return a tf.RaggedTensor of ids"),
        (_Own(lambda letters: _hash(letters).values), "_Own must return a tf.RaggedTensor of ids"),
        (_Own(_hash, None), "_Own.num_tokens must return a whole number of at least 1, got None"),
        (_Own(_hash, 5.0), "_Own.num_tokens must return a whole number of at least 1, got 5.0"),
    ],
    ids=["nothing", "dense", "strings", "flat", "no number", "a fraction"],
)
def test_own_tokenizers_that_return_something_else_are_one_line(own, says):
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=says):
        texts = tf.constant(["ab", ""])
        features.encode_columns([_text(tokenizer=own)], {"x": texts}, NOTHING)


def test_an_own_tokenizer_encodes(encode):
    batch = {"x": np.array(["ab", ""], object)}
    assert encode([_text(tokenizer=_Own(_hash))], batch)["text_x"].shape == (2, 2)
