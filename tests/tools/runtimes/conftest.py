"""The export of the tests of serving."""

from tests.serving.conftest import export, made, make, vocabulary

__all__ = ["export", "made", "make", "vocabulary"]
