"""The cut into words: against plain Python, and against the library that BERT users have."""

import unicodedata

import pytest
import tensorflow as tf

from mtl.features.tokenizers import splitting
from tests.features.tokenizers import references

tf1 = tf.compat.v1


def _split(texts, lowercase):
    words = splitting.split_words(tf.constant(texts), lowercase).to_list()
    return [[word.decode() for word in row] for row in words]


@pytest.mark.medium
@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_those_of_a_slow_tokenizer(lowercase):
    texts = references.draw_texts(500)
    expected = [[w for w in references.split_words(text, lowercase) if w] for text in texts]
    assert _split(texts, lowercase) == expected


@pytest.mark.medium
@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_those_of_the_library(lowercase):
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `text`")
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    cutter = tokenizers.pre_tokenizers.BertPreTokenizer()
    texts = ["".join(filter(_is_old, text)) for text in references.draw_texts(1000, seed=1)]
    expected = [
        [word for word, _ in cutter.pre_tokenize_str(normalizer.normalize_str(text))]
        for text in texts
    ]
    assert _split(texts, lowercase) == expected


def _is_old(character):
    """Return True if Unicode 3.2 gives the character the same category as Python's version.

    The tables of the library are from an earlier version than Python's tables.
    """
    before = unicodedata.ucd_3_2_0.category(character)
    return before != "Cn" and before == unicodedata.category(character)


def test_accents_case_marks_and_spaces():
    text = "Émile's NAÏVE\u00a0café,\tΑΣ\u200b İ"
    small = ["emile", "'", "s", "naive", "cafe", ",", "ασ", "i"]
    assert _split([text], True) == [small]
    large = ["Émile", "'", "s", "NAÏVE", "café", ",", "ΑΣ", "İ"]
    assert _split([text], False) == [large]


def test_bytes_that_are_no_text_are_left_out():
    words = splitting.split_words(tf.constant([b"a\xff\xfeb c\xe4", b"\x80"]), True)
    assert words.to_list() == [[b"ab", b"c"], []]


@pytest.mark.medium
def test_a_graph_holds_each_table_once_and_takes_batches_of_any_size():
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        texts = tf1.placeholder(tf.string, [None])
        words = [splitting.split_words(texts, True) for _ in range(2)]
        tables = [op for op in graph.get_operations() if op.type == "Const"]
        large = [op for op in tables if op.outputs[0].shape.num_elements() > 4000]
        assert len(large) == 5
        for batch, expected in (([], []), ([""], [[]]), (["", "a b", ""], [[], [b"a", b"b"], []])):
            for own in session.run(words, {texts: batch}):
                assert own.to_list() == expected
