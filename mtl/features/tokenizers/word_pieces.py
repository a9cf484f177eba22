"""A tokenizer that cuts words into pieces of a vocabulary, from the training split or a file.

features.Text.tokenizer = @tokenizers.WordPiece()
tokenizers.WordPiece.size = 8000                         # learned; needs the extra `text`
tokenizers.WordPiece.vocabulary = "vocab.txt"            # BERT's vocabulary, instead of learning
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import vocabulary
from mtl.features.tokenizers import greedy, piece_learning, splitting, words

_UNKNOWN = b"[UNK]"


@checks.dataclass
class WordPiece(words.OfWords):
    """Cuts each word from left to right, each time into the longest piece of the vocabulary.

    M. Schuster, K. Nakajima, "Japanese and Korean Voice Search", ICASSP 2012; the algorithm is the
    same as in BERT (J. Devlin et al., NAACL 2019, arXiv:1810.04805). Pieces inside of a word begin
    with `##`. A word that cannot be cut, or has more than 100 characters, becomes one unknown
    token. The unknown token is `[UNK]` if the vocabulary contains it, and otherwise an additional
    id behind all pieces. The tokens [CLS] and [SEP] are not added. Texts are cut into words as in
    `Words`.

    The library `tokenizers` (the extra `text`) learns a vocabulary from the word counts of the
    training split. The vocabulary first gets the single characters, and then, one by one, the most
    frequent pairs of neighbouring pieces. The order of the pieces depends only on the counts.

    Attributes:
      size: the largest number of pieces to learn.
      vocabulary: the path of a file with one piece per line, such as BERT's vocab.txt; None learns
        a vocabulary. A continued run fails if the file in `vocabulary` has changed since the run
        started.
      min_count: the least number of times that a character, or a pair, must occur to become a
        piece.
      lowercase: True first converts letters to lower case and removes accents.
    """

    size: Annotated[int, checks.AtLeast(2)] = 8000

    def __call__(self, texts: tf.Tensor, name: str, fitted: types.Statistics) -> tf.RaggedTensor:
        """Return the ids of the pieces of strings [B], int64 [B, (L)]."""
        pieces = self._read_pieces(name, fitted)
        table = vocabulary.create_table(self._find_entries(name, fitted), 1)
        words = splitting.split_words(texts, self.lowercase)
        return splitting.cut_distinct(
            words, lambda distinct: greedy.cut_words(distinct, table, pieces)
        )

    def num_tokens(self, name: str, fitted: types.Statistics) -> int:
        """Return the number of pieces, plus one if the vocabulary lacks `[UNK]`.

        Raises:
          UserError: the file in `vocabulary` is not a vocabulary, or no piece begins with `##`.
        """
        pieces = self._read_pieces(name, fitted)
        return max(pieces.size, pieces.unknown + 1)

    def accumulator(
        self, field: str, read: Callable[[types.Tensors], tf.Tensor]
    ) -> types.Accumulator | None:
        """Return an accumulator that learns the pieces of a field; None if `vocabulary` is set."""
        if self.vocabulary is not None:
            return None
        return piece_learning.Pieces(
            source=field,
            read=read,
            size=self.size,
            min_count=self.min_count,
            lowercase=self.lowercase,
        )

    def _read_pieces(self, name: str, fitted: types.Statistics) -> greedy.Pieces:
        if self.vocabulary is None:
            entry = fitted.for_column(name)
            return greedy.Pieces(entry["size"], entry["longest"], entry["size"])
        lines = self._read_vocabulary()
        has_insides = any(line.startswith(greedy.INSIDE) for line in lines)
        rule = "hold pieces that begin with ##, for the inside of words"
        fix = "Vocabularies of whole words are for Words."
        checks.require(has_insides, "WordPiece.vocabulary", rule, self.vocabulary, fix)
        # Without `[UNK]`, unknown words get an id behind all pieces.
        unknown = lines.index(_UNKNOWN) if _UNKNOWN in lines else len(lines)
        return greedy.Pieces(len(lines), piece_learning.find_longest(lines), unknown)
