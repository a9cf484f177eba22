"""A command for each claim about speed or quality, which measures all sides in one run."""

import logging

import launch  # noqa: F401 (keeps TensorFlow's notices off the screen)

logging.getLogger("tensorflow").setLevel(logging.ERROR)
