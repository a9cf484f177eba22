"""Encoders that turn texts into ids outside of TensorFlow; exports carry a copy of their files."""
