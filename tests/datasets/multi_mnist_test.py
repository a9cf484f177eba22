import gzip

import numpy as np
import pytest

from mtl import checks, spec
from mtl.data import pipeline, tfds
from mtl.datasets.multi_mnist import builder

SPEC = spec.Spec(
    features={"image": ("uint8", (28, 28, 1))}, labels={"left": "int64", "right": "int64"}
)


def write(folder, part, images, labels):
    """The files of a part of MNIST; the images gzipped."""
    header = bytes([0, 0, 8, 3]) + np.array(images.shape, ">i4").tobytes()
    path = folder / f"{part}-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(header + images.tobytes()))
    header = bytes([0, 0, 8, 1]) + np.array(labels.shape, ">i4").tobytes()
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def digits(num, brightness=0):
    """Images whose brightest pixel says which one it is, in a block that tells the corner."""
    images = np.zeros([num, 28, 28], np.uint8)
    images[:, 9:18, 9:18] = brightness + np.arange(1, num + 1)[:, np.newaxis, np.newaxis]
    return images, (np.arange(num) % 10).astype(np.uint8)


def read(manual_dir, data_dir, split):
    name = "mtl.datasets.multi_mnist.builder.MultiMnist"
    source = tfds.Tfds(name=name, manual_dir=str(manual_dir), data_dir=str(data_dir))
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=1000)
    batches = list(data.dataset(split, training=False, seed=0).as_numpy_iterator())
    merged = [{**features, **labels} for features, labels in batches]
    return {name: np.concatenate([batch[name] for batch in merged]) for name in merged[0]}


def test_digits_lie_in_opposite_corners_of_a_canvas_scaled_to_their_size():
    left, right = np.zeros([2, 28, 28], np.uint8)
    left[0, 0], right[27, 27], left[8:12, 8:12], right[0:4, 0:4] = 81, 162, 27, 54
    canvas = np.zeros([36, 36])
    canvas[0, 0], canvas[35, 35], canvas[8:12, 8:12] = 81, 162, 54
    # Every pixel is cut into 7 x 7, and 9 x 9 of these make a new one.
    fine = np.kron(canvas, np.ones([7, 7]))
    expected = fine.reshape(28, 9, 28, 9).mean((1, 3))
    np.testing.assert_array_equal(builder.overlaid(left, right), np.rint(expected))


@pytest.mark.medium
def test_one_part_is_split_and_no_digit_is_in_both_splits(tmp_path):
    write(tmp_path, "t10k", *digits(100))
    brightest = {}
    for split, first, last in (("train", 0, 80), ("test", 80, 100)):
        values = read(tmp_path, tmp_path / "data", split)
        assert len(values["image"]) == builder.PARTNERS * (last - first)
        lefts = np.repeat(np.arange(first, last), builder.PARTNERS)
        np.testing.assert_array_equal(values["left"], lefts % 10)
        # Here only the left digit is there, and there only the right one.
        np.testing.assert_array_equal(values["image"][:, 8, 8, 0], lefts + 1)
        rights = values["image"][:, 19, 19, 0].astype(int) - 1
        np.testing.assert_array_equal(values["right"], rights % 10)
        brightest[split] = {*lefts, *rights}
    assert not brightest["train"] & brightest["test"]


@pytest.mark.medium
def test_the_splits_of_mnist_are_kept(tmp_path):
    write(tmp_path, "train", *digits(20))
    write(tmp_path, "t10k", *digits(10, brightness=100))
    train, test = (read(tmp_path, tmp_path / "data", split) for split in ("train", "test"))
    assert train["image"].max() == 20
    assert len(test["image"]) == builder.PARTNERS * 10
    assert test["image"].max() == 110


def test_a_folder_without_the_files_is_one_line(tmp_path):
    with pytest.raises(checks.UserError, match=r"holds no images .* t10k-images-idx3-ubyte"):
        read(tmp_path, tmp_path / "data", "train")


@pytest.mark.slow
def test_the_real_files_give_digits_that_can_be_told(real_data, tmp_path):
    values = read(real_data / "mnist", tmp_path, "test")
    assert len(values["image"]) == 8000
    assert values["image"].shape[1:] == (28, 28, 1)
    for side in ("left", "right"):
        assert np.bincount(values[side], minlength=10).min() > 500
