"""Compares an export with the checkpoint and with other exports."""
