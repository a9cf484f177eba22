"""Bytes, n-grams and words: which ids, and how many there are."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features
from mtl.features import tokenizers

NOTHING = features.Statistics(directory="", entries={})


def test_bytes_are_their_own_ids():
    tokenizer = tokenizers.Bytes()
    ids = tokenizer(tf.constant(["aé", "", b"\xff\0", "日"]), "text_x", NOTHING)
    assert ids.to_list() == [[97, 0xC3, 0xA9], [], [255, 0], list("日".encode())]
    assert tokenizer.num_tokens("text_x", NOTHING) == 256
    assert tokenizer(tf.constant([], tf.string), "text_x", NOTHING).to_list() == []


def _ngrams(word, sizes):
    marked = f"<{word}>"
    found = [marked[i : i + n] for n in sizes for i in range(len(marked) - n + 1)]
    return found if len(marked) in sizes else [*found, marked]


@pytest.mark.parametrize("sizes", [(3,), (4, 2), (3, 4, 5)])
def test_ngrams_are_those_of_each_marked_word_and_the_word(sizes):
    tokenizer = tokenizers.CharacterNgrams(sizes=sizes, num_buckets=1000)
    ids = tokenizer(tf.constant(["Where, où", "", "a where"]), "text_x", NOTHING)
    rows = [["where", ",", "ou"], [], ["a", "where"]]
    expected = [[ngram for word in row for ngram in _ngrams(word, sizes)] for row in rows]
    flat = tf.strings.to_hash_bucket_fast(sum(expected, []), 1000).numpy().tolist()
    assert ids.flat_values.numpy().tolist() == flat
    assert ids.row_lengths().numpy().tolist() == list(map(len, expected))
    assert _ngrams("where", (3,)) == ["<wh", "whe", "her", "ere", "re>", "<where>"]


def _fit(fit, tokenizer, texts):
    column = features.Text(names=["x"], tokenizer=tokenizer, encoder=lambda events, target: events)
    return fit([column], {"x": np.array(texts, object)})


def test_words_are_ranked_by_frequency_and_unknown_ones_come_last(fit):
    tokenizer = tokenizers.Words(num_unknown=2)
    fitted = _fit(fit, tokenizer, ["The cat. the dog", "THE cat; a bird."])
    ids = tokenizer(tf.constant(["The Cat bird", "", "cat."]), "text_x", fitted).to_list()
    # "the" three times; ".", "cat" twice each, in order of their bytes.
    assert ids[0][:2] == [0, 2] and ids[0][2] in (3, 4)
    assert ids[1:] == [[], [2, 1]]
    assert tokenizer.num_tokens("text_x", fitted) == 3 + 2


def test_words_of_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("dog\ncat\n")
    tokenizer = tokenizers.Words(vocabulary=str(path))
    ids = tokenizer(tf.constant(["cat Dog bird"]), "text_x", NOTHING)
    assert ids.to_list() == [[1, 0, 2]] and tokenizer.num_tokens("text_x", NOTHING) == 3
    path.write_text("dog\nCat\nBird\n")
    cased = tokenizers.Words(vocabulary=str(path), lowercase=False)
    assert cased.num_tokens("text_x", NOTHING) == 4
    says = (
        r"Words.vocabulary must hold no capital .*, got \['Cat'\]. 2 of 3 tokens .*. Set lowercase"
    )
    with pytest.raises(checks.UserError, match=says):
        tokenizer.num_tokens("text_x", NOTHING)
    path.write_text("café\n[UNK]\n")
    with pytest.raises(checks.UserError, match=r"got \['café'\]. 1 of 2 tokens"):
        tokenizer.num_tokens("text_x", NOTHING)
    path.write_text("Cat\n" + "\n".join(f"w{n}" for n in range(99)))
    assert tokenizer.num_tokens("text_x", NOTHING) == 101


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tokenizers.CharacterNgrams(sizes=[]), "sizes must hold a size"),
        (lambda: tokenizers.CharacterNgrams(sizes=[3, 3]), "sizes must hold each size once"),
        (lambda: tokenizers.CharacterNgrams(sizes=3), "sizes must be a list of whole numbers"),
        (lambda: tokenizers.CharacterNgrams(num_buckets=1), "num_buckets must be at least 2"),
        (lambda: tokenizers.Words(vocabulary=["a"]), "vocabulary must be the path of a file"),
        (lambda: tokenizers.Words(lowercase=1), "Words.lowercase must be True or False"),
        (lambda: tokenizers.Words(max_size=0), "Words.max_size must be at least 1"),
        (lambda: tokenizers.WordPiece(size=1), "WordPiece.size must be at least 2"),
        (lambda: tokenizers.WordPiece(min_count=0), "WordPiece.min_count must be at least 1"),
    ],
)
def test_settings_are_checked_at_construction(make, says):
    with pytest.raises(checks.UserError, match=says):
        make()
