"""Tokenizers: from texts to ids, in the graph.

features.Text.tokenizer = @tokenizers.WordPiece()
tokenizers.WordPiece.size = 8000

Plain TensorFlow ops cut the text. So a server needs no further library or kernel, and it cuts text
exactly as training did. Only learning word pieces needs a library.
"""

from mtl.features.tokenizers.byte_values import Bytes
from mtl.features.tokenizers.ngrams import CharacterNgrams
from mtl.features.tokenizers.word_pieces import WordPiece
from mtl.features.tokenizers.words import Words

__all__ = ["Bytes", "CharacterNgrams", "WordPiece", "Words"]
