"""Commands that measure speed and quality. A command measures all compared programs in one run."""

import logging

import launch  # noqa: F401 (keeps TensorFlow's notices off the screen)

logging.getLogger("tensorflow").setLevel(logging.ERROR)
