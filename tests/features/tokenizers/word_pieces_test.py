"""Word pieces: learned alike each time, and cut in the graph as elsewhere."""

import collections
import random
import sys

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features
from mtl.features import tokenizers
from mtl.features.tokenizers import piece_learning
from tests.features.tokenizers import references

tf1 = tf.compat.v1
NOTHING = features.Statistics(directory="", entries={})
LETTERS = "abcdé日"


def _draw_words(count, longest, seed=0):
    draw = random.Random(seed)
    return ["".join(draw.choices(LETTERS, k=draw.randint(1, longest))) for _ in range(count)]


@pytest.fixture
def given(tmp_path):
    """A tokenizer of a file of 200 pieces of up to five letters, and {piece: id}."""
    draw = random.Random(5)
    pieces = [f"{draw.choice(['', '##'])}{word}" for word in _draw_words(300, 5, seed=6)]
    pieces = [*dict.fromkeys(["[PAD]", *pieces[:100], "[UNK]", *pieces[100:]])]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n")
    tokenizer = tokenizers.WordPiece(vocabulary=str(path), lowercase=False)
    return tokenizer, {piece: i for i, piece in enumerate(pieces)}


def _texts():
    """Texts of drawn words, some of them as long as a word may be, or longer."""
    words = [*_draw_words(2000, 9), *("a" * n for n in (99, 100, 101)), "abx", "x"]
    random.Random(1).shuffle(words)
    return [" ".join(words[i : i + 5]) for i in range(0, len(words), 5)]


@pytest.mark.medium
def test_pieces_are_the_longest_from_left_to_right(given):
    tokenizer, pieces = given
    texts = _texts()
    expected = []
    for text in texts:
        words = filter(None, references.split_words(text, lowercase=False))
        cut = [references.cut_word(word, pieces, pieces["[UNK]"]) for word in words]
        expected.append(sum(cut, []))
    ids = tokenizer(tf.constant(texts), "text_x", NOTHING).to_list()
    assert ids == expected
    counts = collections.Counter(sum(ids, []))
    assert counts[pieces["[UNK]"]] == 3 and len(counts) > 90
    assert tokenizer.num_tokens("text_x", NOTHING) == len(pieces)


@pytest.mark.medium
def test_pieces_are_those_of_the_library(given):
    library = pytest.importorskip("tokenizers", reason="needs the extra `text`")
    tokenizer, pieces = given
    model = library.models.WordPiece(pieces, unk_token="[UNK]", max_input_chars_per_word=100)
    other = library.Tokenizer(model)
    other.normalizer = library.normalizers.BertNormalizer(lowercase=False)
    other.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    texts = _texts()
    ids = tokenizer(tf.constant(texts), "text_x", NOTHING).to_list()
    assert ids == [encoded.ids for encoded in other.encode_batch(texts)]


@pytest.mark.medium
def test_the_graph_is_of_plain_ops_and_takes_batches_of_any_size(given):
    tokenizer, pieces = given
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        texts = tf1.placeholder(tf.string, [None])
        ids = tokenizer(texts, "text_x", NOTHING)
        session.run(tf1.tables_initializer())
        for batch in ([], [""], ["", "x"]):
            unknown = [[pieces["[UNK]"]] if text else [] for text in batch]
            assert session.run(ids, {texts: batch}).to_list() == unknown
        proto = graph.as_graph_def()
        nodes = [*proto.node, *(node for f in proto.library.function for node in f.node_def)]
        assert not [node.op for node in nodes if "Py" in node.op]


def _learn(fit, texts, **settings):
    pytest.importorskip("tokenizers", reason="needs the extra `text`")
    tokenizer = tokenizers.WordPiece(**settings)
    column = features.Text(names=["x"], tokenizer=tokenizer, encoder=lambda events, target: events)
    fitted = fit([column], {"x": np.array(texts, object)})
    with open(tokenizer.row_names("text_x", fitted).names) as file:
        return tokenizer, fitted, file.read().splitlines()


def test_pieces_are_learned_of_frequent_pairs(fit):
    texts = ["Hugs hug hugs.", "pun HUG bun bun"] * 5
    tokenizer, fitted, pieces = _learn(fit, texts, size=30)
    # All characters by frequency, first of all those of "hug", of which each stands there 20 times.
    assert pieces[:4] == ["u", "##u", "g", "h"]
    assert {"hug", "hugs", "bun", "."} < set(pieces) and "H" not in pieces
    ids = tokenizer(tf.constant(["hugs", "hugun", "bunb", "%"]), "text_x", fitted).to_list()
    assert [pieces[i] for i in ids[0] + ids[1]] == ["hugs", "hug", "##un"]
    assert ids[2:] == [[len(pieces)], [len(pieces)]]  # No "b" stood inside of a word.
    assert tokenizer.num_tokens("text_x", fitted) == len(pieces) + 1


@pytest.mark.parametrize("size", [3, 40, 1000])
def test_equal_counts_give_equal_pieces_and_no_more_than_asked_for(size):
    pytest.importorskip("tokenizers", reason="needs the extra `text`")
    counts = collections.Counter(_draw_words(500, 7, seed=3))
    first = piece_learning.learn_pieces(counts, size, 2)
    assert len(first) <= size and len(set(first)) == len(first)
    for _ in range(3):
        assert piece_learning.learn_pieces(dict(reversed(counts.items())), size, 2) == first


def test_a_word_counts_as_often_as_it_occurs(monkeypatch):
    monkeypatch.setattr(piece_learning, "_COPIES", 10)
    texts = list(piece_learning._repeat({"a": 25, "b": 10, "c": 1}))
    assert collections.Counter(" ".join(texts).split()) == {"a": 25, "b": 10, "c": 1}


def test_learning_without_the_library_says_what_to_install(fit, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    column = features.Text(
        names=["x"], tokenizer=tokenizers.WordPiece(), encoder=lambda events, target: events
    )
    says = r"WordPiece.vocabulary must name a file, .* pip install 'multitask-estimator\[text\]'"
    with pytest.raises(checks.UserError, match=says):
        fit([column], {"x": np.array(["a", "b"], object)})


def test_texts_without_a_frequent_character_are_refused(fit):
    with pytest.raises(checks.UserError, match="text_x must hold a character that occurs 2 times"):
        _learn(fit, ["a", "b", ""])


def test_a_vocabulary_that_is_not_there_is_refused_by_all_that_read_it():
    tokenizer = tokenizers.WordPiece(vocabulary="no")
    for read in (tokenizer.num_tokens, tokenizer.row_names):
        with pytest.raises(checks.UserError, match="WordPiece.vocabulary must be an existing file"):
            read("text_x", NOTHING)


def test_a_vocabulary_of_a_cased_model_is_refused_where_letters_become_small(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[UNK]\nthe\nThe\n")
    tokenizer = tokenizers.WordPiece(vocabulary=str(path))
    with pytest.raises(checks.UserError, match=r"got \['The'\]. 1 of 3 tokens"):
        tokenizer.num_tokens("text_x", NOTHING)
    path.write_text("[UNK]\nthe\n##s\n")
    assert tokenizer.num_tokens("text_x", NOTHING) == 3
    path.write_text("[UNK]\nthe\n▁s\n")
    with pytest.raises(checks.UserError, match="must hold pieces that begin with ##"):
        tokenizer.num_tokens("text_x", NOTHING)
