"""Measures the time that each tokenizer takes for a text, and the number of tokens.

Texts are random parts of this repository's documentation. Each tokenizer gets batches of texts, in
the graph of a session, as in a training step. Tokenizers with a vocabulary learn the vocabulary
from the same texts; this time is measured separately.

    python -m benchmarks.tokenizers --characters 200
"""

import argparse
import pathlib
import random
import tempfile
import time

import numpy as np
import tensorflow as tf

from mtl import features, histories
from mtl.features import tokenizers

tf1 = tf.compat.v1

ROOT = pathlib.Path(__file__).parent.parent
TOKENIZERS = {
    "`Bytes`": tokenizers.Bytes(),
    "`Words`": tokenizers.Words(),
    "`WordPiece`": tokenizers.WordPiece(size=4000),
    "`CharacterNgrams`": tokenizers.CharacterNgrams(),
}


def read_texts(count: int, characters: int) -> list[str]:
    """Return random texts of `characters` characters from the pages of docs/."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    all_text = " ".join(" ".join(path.read_text().split()) for path in pages)
    draw = random.Random(0)
    starts = (draw.randrange(len(all_text) - characters) for _ in range(count))
    return [all_text[start : start + characters] for start in starts]


def measure(tokenizer, texts: list[str], batch_size: int, rounds: int) -> tuple[float, ...]:
    """Return the seconds of learning, and the mean microseconds and tokens of a text."""
    column = features.Text(names=["text"], tokenizer=tokenizer, encoder=histories.Pooling())
    batches = [texts[i : i + batch_size] for i in range(0, len(texts), batch_size)]
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        features.fit_columns([column], [({"text": tf.constant(b)}, {}) for b in batches], directory)
        learning = time.perf_counter() - started
        fitted = features.load_statistics(directory)
        with tf.Graph().as_default(), tf1.Session() as session:
            text_input = tf1.placeholder(tf.string, [None])
            ids = tokenizer(text_input, "text_text", fitted).flat_values
            session.run(tf1.tables_initializer())
            count = sum(len(session.run(ids, {text_input: batch})) for batch in batches)
            times = []
            for _ in range(rounds):
                started = time.perf_counter()
                for batch in batches:
                    session.run(ids.op, {text_input: batch})
                times.append(time.perf_counter() - started)
    return learning, float(np.median(times)) / len(texts) * 1e6, count / len(texts)


def main() -> None:
    """Print a table of the tokenizers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--characters", type=int, default=200, help="characters of a text")
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    texts = read_texts(flags.texts, flags.characters)
    print("| tokenizer | µs for a text | tokens of it | learning, s |\n| -- | -- | -- | -- |")
    for name, tokenizer in TOKENIZERS.items():
        learning, micros, tokens = measure(tokenizer, texts, flags.batch_size, flags.rounds)
        print(f"| {name} | {micros:.0f} | {tokens:.0f} | {learning:.1f} |")


if __name__ == "__main__":
    main()
