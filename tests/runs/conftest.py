"""The trained model of the tests of scoring."""

from tests.tools.scoring.conftest import trained

__all__ = ["trained"]
