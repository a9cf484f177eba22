"""Rendered scenes: labels against geometry, by other formulas than the renderer's."""

import numpy as np
import pytest

from mtl import spec
from mtl.data import pipeline, tfds
from mtl.datasets.scenes import builder, rendering

SIZE = 24


@pytest.fixture(scope="module")
def scenes():
    drawn = [rendering.render_scene(np.random.default_rng([7, n]), SIZE) for n in range(30)]
    return {name: np.stack([scene[name] for scene in drawn]) for name in drawn[0]}


def rays():
    middles = ((np.arange(SIZE) + 0.5) / SIZE - 0.5) / 0.8
    right, down = np.meshgrid(middles, middles)
    return np.stack([right, down, np.ones_like(right)], -1)


def test_every_kind_is_there_and_labels_belong_together(scenes):
    kind, depth, normal = scenes["kind"], scenes["depth"], scenes["normal"]
    assert set(np.unique(kind)) == set(range(len(rendering.KINDS)))
    is_sky = kind == rendering.SKY
    assert not depth[is_sky].any() and not normal[is_sky].any()
    lengths = np.linalg.norm(normal[~is_sky], axis=-1)
    np.testing.assert_allclose(lengths, 1, atol=1e-5)
    assert depth.max() <= rendering.FAR and (depth[~is_sky] == 0).any()
    assert ((normal * rays()).sum(-1)[~is_sky] < 1e-6).all()  # All face the camera.


def test_points_of_a_plane_lie_on_it(scenes):
    """Depth, normal and class agree: floors and walls of a scene are one plane each."""
    points = scenes["depth"][..., np.newaxis] * rays()
    for what in (rendering.FLOOR, rendering.WALL):
        for scene in range(len(points)):
            is_on = (scenes["kind"][scene] == what) & (scenes["depth"][scene] > 0)
            if is_on.sum() < 3:
                continue
            own = points[scene][is_on]
            normal = scenes["normal"][scene][is_on]
            assert np.ptp(normal, axis=0).max() < 1e-6
            assert np.ptp(own @ normal[0]) < 1e-4


def test_points_of_a_sphere_are_as_far_from_its_centre():
    centre, radius = np.array([0.3, -0.2, 4.0]), 1.2
    hits = rendering.meet_sphere(rays(), centre, radius)
    points = (hits.distances[..., np.newaxis] * rays())[np.isfinite(hits.distances)]
    assert len(points) > 50
    np.testing.assert_allclose(np.linalg.norm(points - centre, axis=-1), radius)
    # The nearer of two points: the normal is from the centre, towards the camera.
    normals = hits.normals[np.isfinite(hits.distances)]
    np.testing.assert_allclose(normals, (points - centre) / radius)
    assert ((normals * points).sum(-1) < 0).all()


def test_points_of_a_box_lie_on_its_sides():
    centre, sides = np.array([0.2, 0.1, 3.0]), np.array([0.5, 0.4, 0.6])
    sine, cosine = np.sin(0.5), np.cos(0.5)
    turn = np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])
    hits = rendering.meet_box(rays(), centre, sides, turn)
    is_hit = np.isfinite(hits.distances)
    assert 20 < is_hit.sum() < SIZE**2
    own = ((hits.distances[..., np.newaxis] * rays())[is_hit] - centre) @ turn / sides
    np.testing.assert_allclose(np.abs(own).max(-1), 1, atol=1e-9)
    side = np.abs(own).argmax(-1)
    wanted = np.sign(own[np.arange(len(own)), side])[:, np.newaxis] * turn.T[side]
    np.testing.assert_allclose(hits.normals[is_hit], wanted, atol=1e-9)
    # A ray that misses comes no nearer than the box: brute force over points along it.
    along = np.linspace(0.5, 6, 400)[:, np.newaxis, np.newaxis, np.newaxis] * rays()
    inside = (np.abs((along - centre) @ turn) < sides - 1e-2).all(-1).any(0)
    assert not (inside & ~is_hit).any()


class Few(builder.Scenes):
    """A handful of scenes."""

    SIZE = 8
    COUNTS = {"train": 3, "test": 2}


@pytest.mark.medium
def test_the_builder_writes_the_scenes_of_its_seeds(tmp_path):
    name = f"{__name__}.Few"
    source = tfds.Tfds(name=name, data_dir=str(tmp_path))
    shape = (8, 8)
    made = spec.Spec(
        features={"image": ("uint8", (*shape, 3))},
        labels={
            "kind": ("int64", shape),
            "depth": ("float32", shape),
            "normal": ("float32", (*shape, 3)),
        },
    )
    for split, number in (("train", 0), ("test", 1)):
        data = pipeline.Pipeline(source=source, spec=made, batch_size=5)
        ((features, labels),) = data.dataset(split, training=False, seed=0).as_numpy_iterator()
        assert len(features["image"]) == Few.COUNTS[split]
        for row, image in enumerate(features["image"]):
            wanted = rendering.render_scene(np.random.default_rng([number, row]), 8)
            np.testing.assert_array_equal(image, wanted["image"])
            for field, values in labels.items():
                np.testing.assert_array_equal(values[row], wanted[field])
