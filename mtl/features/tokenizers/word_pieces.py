"""Words and parts of words as tokens, by a vocabulary that is learned or given.

features.Text.tokenizer = @tokenizers.WordPiece()
tokenizers.WordPiece.size = 8000                         # learned; needs the extra `text`
tokenizers.WordPiece.vocabulary = "vocab.txt"            # that of a BERT, in place of it
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from mtl import checks, types
from mtl.features import vocabulary
from mtl.features.tokenizers import greedy, piece_learning, splitting, words

_UNKNOWN = b"[UNK]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordPiece(words.OfWords):
    """Cuts each word into the longest pieces that the vocabulary holds, from left to right.

    M. Schuster, K. Nakajima, "Japanese and Korean Voice Search", ICASSP 2012; the cut is that of
    BERT (J. Devlin et al., NAACL 2019, arXiv:1810.04805). Inside a word a piece begins with `##`. A
    word that cannot be cut so, or has more than 100 characters, is one unknown token: that of
    `[UNK]` in a vocabulary that has it, else a place behind all others. No [CLS] and no [SEP] is
    added. `Words` says how a text is cut into words.

    A vocabulary is learned by the library `tokenizers` (the extra `text`), from the counts of words
    of the training split: first the single characters, then the pairs that stand side by side most
    often, one after the other. The order of the rows hangs on the counts alone.

    Attributes:
      size: the most pieces to learn.
      vocabulary: the path of a file with one piece a line, such as the vocab.txt of a BERT, in
        place of learning one. A run refuses a file that has changed since it was started.
      min_count: how often a character or a pair must occur to become a piece.
      lowercase: True makes letters small and removes their accents first.
    """

    size: int = 8000

    def __post_init__(self):
        super().__post_init__()
        checks.whole("WordPiece.size", self.size, 2)

    def __call__(self, texts: tf.Tensor, name: str, fitted: types.Statistics) -> tf.RaggedTensor:
        """Return the pieces, strings [B] -> int64 [B, (L)]."""
        pieces = self._read_pieces(name, fitted)
        table = vocabulary.create_table(self._entries(name, fitted), 1)
        found = splitting.split_words(texts, self.lowercase)
        return splitting.cut_distinct(
            found, lambda distinct: greedy.cut_words(distinct, table, pieces)
        )

    def num_tokens(self, name: str, fitted: types.Statistics) -> int:
        """Return the number of pieces, and one for what is unknown if none of them says so."""
        pieces = self._read_pieces(name, fitted)
        return max(pieces.size, pieces.unknown + 1)

    def accumulator(
        self, field: str, read: Callable[[types.Tensors], tf.Tensor]
    ) -> types.Accumulator | None:
        """Return what learns the pieces of a field."""
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
        lines = self._read_given()
        has_insides = any(line.startswith(greedy.INSIDE) for line in lines)
        rule = "hold pieces that begin with ##, for the inside of words"
        fix = "Vocabularies of whole words are for Words."
        checks.require(has_insides, "WordPiece.vocabulary", rule, self.vocabulary, fix)
        unknown = lines.index(_UNKNOWN) if _UNKNOWN in lines else len(lines)
        return greedy.Pieces(len(lines), piece_learning.find_longest(lines), unknown)
