"""Measures how many planted defects the tests detect, one at a time, until a test fails."""
