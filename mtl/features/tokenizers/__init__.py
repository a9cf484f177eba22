"""Tokenizers, which turn texts into token ids in the graph.

features.Text.tokenizer = @tokenizers.WordPiece()
tokenizers.WordPiece.size = 8000

Tokenizers use only plain TensorFlow ops. So a server needs no additional library or kernel, and
cuts texts in the same way as training. Only the learning of word pieces needs a library.
"""

from mtl.features.tokenizers.byte_values import Bytes
from mtl.features.tokenizers.ngrams import CharacterNgrams
from mtl.features.tokenizers.word_pieces import WordPiece
from mtl.features.tokenizers.words import Words

__all__ = ["Bytes", "CharacterNgrams", "WordPiece", "Words"]
