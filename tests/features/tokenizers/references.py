"""Tokenizers in plain Python, character by character, and texts to try them on."""

import random
import unicodedata

# Letters with accents, marks, ideographs, emoji, and characters that become several or none.
_POOLS = [
    *[range(32, 127)] * 6,
    range(0x250),
    range(0x300, 0x600),
    range(0x1E00, 0x2100),
    range(0x3000, 0x3200),
    range(0x4E00, 0x4F00),
    range(0xAC00, 0xAC80),
    range(0xF900, 0xFA00),
    range(0x1F300, 0x1F400),
    range(0x20000, 0x20010),
    [ord(c) for c in "İΣßﬁÅ≠\ufeff\u200b\xad\ufffd\0\t\n"],
]


def draw_texts(count, seed=0):
    """Texts of up to 60 characters of all kinds."""
    draw = random.Random(seed)
    sizes = (draw.randint(0, 60) for _ in range(count))
    return ["".join(chr(draw.choice(draw.choice(_POOLS))) for _ in range(n)) for n in sizes]


def split_words(text, lowercase):
    """The words of a text, as the basic tokenizer of BERT cuts them."""
    kept = [" " if _is_space(c) else c for c in text if _is_space(c) or not _is_control(c)]
    text = "".join(f" {c} " if _is_ideograph(ord(c)) else c for c in kept)
    if lowercase:
        parts = unicodedata.normalize("NFD", text)
        text = "".join(c.lower() for c in parts if unicodedata.category(c) != "Mn")
    return "".join(f" {c} " if _is_punctuation(c) else c for c in text).split(" ")


def _is_space(character):
    return character in "\t\n\r" or unicodedata.category(character) in ("Zs", "Zl", "Zp")


def _is_control(character):
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Co")


def _is_ideograph(point):
    return (
        (0x4E00 <= point <= 0x9FFF)
        or (0x3400 <= point <= 0x4DBF)
        or (0x20000 <= point <= 0x2A6DF)
        or (0xF900 <= point <= 0xFAFF)
    )


def _is_punctuation(character):
    point = ord(character)
    is_ascii = 33 <= point <= 47 or 58 <= point <= 64 or 91 <= point <= 96 or 123 <= point <= 126
    return is_ascii or unicodedata.category(character).startswith("P")


def cut_word(word, pieces, unknown):
    """The longest pieces from left to right; the unknown one if the word cannot be cut."""
    found, begin = [], 0
    while begin < len(word):
        mark = "##" if begin else ""
        ends = range(len(word), begin, -1)
        end = next((end for end in ends if mark + word[begin:end] in pieces), None)
        if end is None or len(word) > 100:
            return [unknown]
        found.append(pieces[mark + word[begin:end]])
        begin = end
    return found
