import pytest

from mtl import checks
from mtl.data import csv, image_files, mixture
from mtl.tools.scoring import image_rows


def _photos(name, folder="photos"):
    table = csv.Csv(files={"train": f"{name}.csv"})
    return image_files.ImageFiles(source=table, fields=["photo"], folder=folder)


def _mixed(**sources):
    return mixture.Mixture(sources=sources, labels={name: [name] for name in sources})


def test_images_are_found_in_each_nesting():
    photos, table = _photos("cat"), csv.Csv(files={"train": "dog.csv"})
    assert image_rows.find(table) is None and image_rows.find(_mixed(dog=table, bird=table)) is None
    for nested in (photos, _mixed(dog=table, cat=photos), _mixed(dog=_photos("dog"), cat=photos)):
        assert image_rows.find(nested).folder == "photos"


def test_images_of_two_folders_are_one_line():
    with pytest.raises(checks.UserError, match="sources of a mixture must have equal ImageFiles"):
        image_rows.find(_mixed(cat=_photos("cat"), dog=_photos("dog", "dogs")))
