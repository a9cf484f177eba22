"""Patches against TensorFlow's own."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl.example_gradients import patches

tf1 = tf.compat.v1

SHAPES = [(11, 10, 2), (10, 11, 6)]
KERNELS = [(1, 1), (2, 3), (5, 5)]
SETTINGS = [(1, 1), (2, 1), (3, 1), (1, 2)]  # Pairs of a stride and a dilation.


@pytest.mark.medium
@pytest.mark.parametrize("is_known", [True, False], ids=["sizes known", "sizes not known"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("shape", SHAPES, ids=["few channels", "many"])
def test_patches_are_those_of_tensorflow(shape, padding, is_known):
    values = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        images = tf1.placeholder(
            tf.float32, [None, *(shape[:2] if is_known else [None] * 2), shape[2]]
        )
        pairs = []
        for (height, width), (stride, dilation) in itertools.product(KERNELS, SETTINGS):
            kernel = tf.zeros([height, width, shape[2], 4])
            output = tf.nn.conv2d(images, kernel, stride, padding, dilations=dilation)
            sizes = [1, height, width, 1], [1, stride, stride, 1], [1, dilation, dilation, 1]
            pairs.append(
                (
                    patches.extract_patches(output.op),
                    tf.image.extract_patches(images, *sizes, padding),
                )
            )
        for ours, theirs in session.run(pairs, {images: values}):
            np.testing.assert_array_equal(ours, theirs)
