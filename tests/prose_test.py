"""Phrasings that a newcomer reads twice are found in every kind of text, and stay rare."""

import pytest

from tests import prose

_FLAWED = {
    "relative clause as the subject": "What a task has of the network is not clipped.",
    "genitive without a noun": "Weights and normalisations are those of the checkpoint.",
    "'what' as a noun": "Return what chooses the rows of a split.",
    "'is no' for 'is not a'": "The value of the version is no number.",
    "'where' for 'if'": "A row is left out, where there are several.",
    "'but' for 'except'": "The step changes nothing but the tables.",
    "two clauses with 'which'": "A table in which rows lie to which ids belong.",
    "'of its own'": "Each task has a tower of its own.",
}


@pytest.mark.parametrize("flaw", prose.PHRASES)
def test_a_phrase_is_found(flaw):
    (sentence,) = prose.split("here:1", _FLAWED[flaw])
    assert sentence.list_flaws() == [flaw]


def test_every_kind_of_text_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "_ROOT", tmp_path)
    (tmp_path / "part.py").write_text(
        '"""Holds the rows.\n\nIt is that of the run."""\n\n# A comment on\n# two whole lines.\n'
        'print("a text that somebody reads")\n'
    )
    (tmp_path / "run.gin").write_text("# The run of a first part.\nx.y = 1\n")
    (tmp_path / "page.md").write_text(
        "# A title of four words\n\nOne sentence stands here. Another one\nstands there.\n"
        "- an item of a list\n\n| a cell with four words | b |\n| -- | -- |\n"
        "```\nsome code that is left out\n```\n"
    )
    found = {
        kind: [(sentence.place, sentence.text) for sentence in sentences]
        for kind, sentences in prose.read(["part.py", "run.gin", "page.md"]).items()
    }
    assert found == {
        "docstrings": [("part.py:1", "It is that of the run.")],
        "comments": [
            ("part.py:5", "A comment on two whole lines."),
            ("run.gin:1", "The run of a first part."),
        ],
        "messages": [("part.py:7", "a text that somebody reads")],
        "pages": [
            ("page.md:1", "A title of four words"),
            ("page.md:3", "One sentence stands here."),
            ("page.md:3", "Another one stands there."),
            ("page.md:5", "an item of a list"),
        ],
        "tables": [("page.md:7", "a cell with four words")],
    }


@pytest.mark.thorough  # `make lint` checks the same.
def test_flawed_sentences_are_rare():
    for kind, sentences in prose.read().items():
        flawed = [sentence for sentence in sentences if sentence.list_flaws()]
        assert len(flawed) < prose.MOST * len(sentences), (kind, flawed)
