"""Words as tokens, by a vocabulary.

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

# A small share of tokens that texts never contain does not hurt.
_MOST_UNREACHABLE = 0.01


@checks.dataclass
class OfWords(types.Tokenizer):
    """A tokenizer that cuts texts into words first, and finds tokens in a vocabulary.

    Attributes:
      vocabulary: the path of a file with one token a line; None takes the tokens of the training
        split. A run refuses a file that has changed since the run was started.
      min_count: how often a token must occur in the training split to be in the vocabulary.
      lowercase: True makes letters small and removes their accents first.
    """

    vocabulary: Annotated[str, checks.Is(str, "be the path of a file or None")] | None = None
    min_count: checks.Count = 2
    lowercase: bool = True

    @property
    def file(self) -> str | None:
        """The file of the vocabulary from the settings, or None."""
        return self.vocabulary

    def row_names(self, name: str, fitted: types.Statistics) -> types.RowNames:
        """Return the tokens."""
        if self.vocabulary is not None:
            self._read_vocabulary()  # Check the file here, where an error can name the setting.
        return types.RowNames(names=self._find_entries(name, fitted), axis=0, and_unknown=True)

    def _find_entries(self, name: str, fitted: types.Statistics) -> str:
        """Return the file of the vocabulary."""
        if self.vocabulary is None:
            return fitted.path(fitted.for_column(name)["file"])
        return self.vocabulary

    def _read_vocabulary(self) -> list[bytes]:
        """Return the tokens of the file `vocabulary`.

        Raises:
          UserError: it is not a vocabulary, or many of its tokens cannot occur in texts.
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
    """Return True if a token cannot occur in texts whose letters were made small."""
    is_special = token[0] == "[" and token[-1] == "]"  # Like [UNK], which no text contains.
    if token.isascii():
        return not is_special and token != token.lower()
    return token != characters.clean(token, lowercase=True)


@checks.dataclass
class Words(OfWords):
    """Makes a token of each word, by vocabulary, and finds words like BERT's basic tokenizer.

    Spaces separate words; each punctuation mark or ideograph is a word. Unknown words have extra
    ids after the vocabulary. `characters` says how letters are cleaned first.

    Attributes:
      vocabulary: the path of a file with one word a line; None takes the words of the training
        split. A run refuses a file that has changed since the run was started.
      min_count: how often a word must occur in the training split to enter the vocabulary. The
        default is 2: a word that occurs once says little, and its row can train the vector of
        unknown words.
      max_size: the largest number of words, the most frequent ones; None keeps all.
      num_unknown: the number of ids for unknown words; a hash chooses among them.
      lowercase: True makes letters small and removes their accents first.
    """

    max_size: checks.Count | None = None
    num_unknown: checks.Count = 1

    def __call__(self, texts: tf.Tensor, name: str, fitted: types.Statistics) -> tf.RaggedTensor:
        """Return the words, strings [B] -> int64 [B, (L)]."""
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
