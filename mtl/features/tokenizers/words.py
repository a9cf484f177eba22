"""A tokenizer that looks up whole words in a vocabulary.

features.Text.tokenizer = @tokenizers.Words()
tokenizers.Words.max_size = 20000
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, cast

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import accumulators, vocabulary
from mtl.features.tokenizers import characters, splitting

# A vocabulary may hold a small share of tokens that can never occur in texts.
_MOST_UNREACHABLE = 0.01


@checks.dataclass
class OfWords(types.Tokenizer):
    """The base class of tokenizers that cut texts into words, and look up tokens in a vocabulary.

    Attributes:
      vocabulary: the path of a file with one token per line; None learns the tokens from the
        training split. A continued run fails if the file in `vocabulary` has changed since the run
        started.
      min_count: the least number of times that a token of a learned vocabulary occurs in the
        training split.
      lowercase: True first converts letters to lower case and removes accents.
    """

    vocabulary: Annotated[str, checks.Is(str, "be the path of a file or None")] | None = None
    min_count: checks.Count = 2
    lowercase: bool = True

    @property
    def file(self) -> str | None:
        """The file of the vocabulary from the settings, or None."""
        return self.vocabulary

    def row_names(self, name: str, fitted: types.Statistics) -> types.RowNames:
        """Return the tokens, which name the rows of the embedding."""
        if self.vocabulary is not None:
            self._read_vocabulary()  # Read the file here, so that an error names the setting.
        return types.RowNames(names=self._find_entries(name, fitted), axis=0, and_unknown=True)

    def _find_entries(self, name: str, fitted: types.Statistics) -> str:
        """Return the path of the vocabulary file, from the settings or the statistics."""
        if self.vocabulary is None:
            return fitted.path(fitted.for_column(name)["file"])
        return self.vocabulary

    def _read_vocabulary(self) -> list[bytes]:
        """Read the tokens of the file in `vocabulary`.

        Raises:
          UserError: the file is not a vocabulary, or many tokens cannot occur in texts.
        """
        kind = type(self).__name__
        lines = vocabulary.read_file(f"{kind}.vocabulary", cast(str, self.vocabulary))
        if self.lowercase:
            tokens = [line.decode(errors="replace") for line in lines]
            unreachable = [token for token in tokens if _is_unreachable(token)]
            rule = f"hold no capital letters or accents if {kind}.lowercase is True"
            fix = f"{len(unreachable)} of {len(lines)} tokens have some. Set lowercase = False."
            fits = len(unreachable) <= _MOST_UNREACHABLE * len(lines)
            checks.require(fits, f"{kind}.vocabulary", rule, unreachable[:1], fix)
        return lines


def _is_unreachable(token: str) -> bool:
    """Return True if a token cannot occur in texts in lower case."""
    is_special = token[0] == "[" and token[-1] == "]"  # No text contains [UNK].
    if token.isascii():
        return not is_special and token != token.lower()
    return token != characters.clean(token, lowercase=True)


@checks.dataclass
class Words(OfWords):
    """Turns each word into a token by a vocabulary; cuts words like BERT's basic tokenizer.

    Spaces separate words; each punctuation mark or ideograph is a word. Unknown words get
    additional ids, which follow the ids of the vocabulary. Texts are first cleaned by the rules of
    `mtl.features.tokenizers.characters`.

    Attributes:
      vocabulary: the path of a file with one word per line; None learns the words from the training
        split. A continued run fails if the file in `vocabulary` has changed since the run started.
      min_count: the least number of times that a word of the vocabulary occurs in the training
        split. `min_count` is 2 by default, because a word that occurs once says little, and its row
        can train the vector of unknown words.
      max_size: the largest number of words; the most frequent words are kept. None keeps all words.
      num_unknown: the number of ids for unknown words; a hash chooses one of these ids.
      lowercase: True first converts letters to lower case and removes accents.
    """

    max_size: checks.Count | None = None
    num_unknown: checks.Count = 1

    def __call__(self, texts: tf.Tensor, name: str, fitted: types.Statistics) -> tf.RaggedTensor:
        """Return the ids of the words of strings [B], int64 [B, (L)]."""
        words = splitting.split_words(texts, self.lowercase)
        table = vocabulary.create_table(self._find_entries(name, fitted), self.num_unknown)
        return words.with_flat_values(table.lookup(words.flat_values))

    def num_tokens(self, name: str, fitted: types.Statistics) -> int:
        """Return the size of the vocabulary plus `num_unknown`."""
        has_vocabulary = self.vocabulary is not None
        size = len(self._read_vocabulary()) if has_vocabulary else fitted.for_column(name)["size"]
        return size + self.num_unknown

    def accumulator(
        self, field: str, read: Callable[[types.Tensors], tf.Tensor]
    ) -> types.Accumulator | None:
        """Return an accumulator that counts the words of a field; None if `vocabulary` is set."""
        if self.vocabulary is not None:
            return None

        def read_words(features: types.Tensors):
            return splitting.split_words(read(features), self.lowercase).flat_values.numpy()

        source = f"{'small' if self.lowercase else 'all'} words of {field}"
        return accumulators.Vocabulary(
            reads={source: read_words}, min_count=self.min_count, max_size=self.max_size
        )
