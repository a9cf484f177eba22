"""Compares an export of a model with its checkpoint and with other exports."""
