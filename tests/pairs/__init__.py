"""Pairs of features, each held against what every run keeps."""

from tests.pairs.claims import CLAIMS, Outcome, check
from tests.pairs.features import BY_NAME, FEATURES, ClashError, Feature, make

__all__ = ["BY_NAME", "CLAIMS", "FEATURES", "ClashError", "Feature", "Outcome", "check", "make"]
