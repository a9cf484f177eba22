"""Renders small scenes of spheres and boxes, with the class, depth and normal of each pixel.

scene = rendering.render_scene(np.random.default_rng(0), 32)
scene["image"], scene["kind"], scene["depth"], scene["normal"]  # uint8, int64, float32 twice
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

KINDS = ("sky", "floor", "wall", "sphere", "box")
SKY, FLOOR, WALL, SPHERE, BOX = range(5)
# The largest depth; depths above it are missing values (0), as from a depth sensor.
FAR = 10.0
_FOCAL = 0.8  # The focal length in widths of the image, for an angle of view of 64 degrees.
_AMBIENT = 0.35
_NOISE = 0.02


class Hits(NamedTuple):
    """The points at which the rays of all pixels hit a surface, and the normals of the surface.

    Attributes:
      distances: [H, W], the distance of each point as a multiple of the ray vector. Since a ray
        vector has the depth 1, the distance of a point equals its depth. The distance is infinite
        for a ray that hits no surface.
      normals: [H, W, 3], the unit normal of the surface at each point that a ray hits.
    """

    distances: np.ndarray
    normals: np.ndarray


def render_scene(random: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Draw a scene and render it.

    A pinhole camera stands on a floor, and looks down a little at two to five spheres and boxes.
    Most scenes have a wall behind the spheres and boxes. Each surface has a random colour, and a
    distant light shades it. All labels are exact at the centre of a pixel; only the image is
    rounded and has noise.

    Args:
      random: the generator of random numbers.
      size: the height and width of the image in pixels.

    Returns:
      The arrays of the scene, by name:

      - `image`: uint8 [size, size, 3].
      - `kind`: int64 [size, size], an index into `KINDS`.
      - `depth`: float32 [size, size], along the axis of the camera; 0 in the sky and beyond `FAR`.
      - `normal`: float32 [size, size, 3], with the axes right, down and away from the camera; 0 in
        the sky.
    """
    rays = _cast_rays(size)
    turn = _turn_down(random.uniform(0, 0.4))
    in_world = rays @ turn.T
    height = random.uniform(1.0, 1.8)
    light = _draw_light(random)
    image = _draw_sky(random, size)
    kind = np.full([size, size], SKY, np.int64)
    depth, normal = np.full([size, size], np.inf), np.zeros([size, size, 3])
    for surface, hits in _draw_surfaces(random, in_world, height):
        # The surface is in front of the camera, and nearer than all earlier surfaces.
        is_visible = (hits.distances > 0) & (hits.distances < depth)
        shade = _AMBIENT + (1 - _AMBIENT) * np.maximum(hits.normals @ light, 0)
        colour = random.uniform(0.2, 1.0, 3) * shade[..., np.newaxis]
        image[is_visible] = colour[is_visible]
        normal[is_visible] = hits.normals[is_visible]
        kind[is_visible], depth[is_visible] = surface, hits.distances[is_visible]
    image = np.clip(image + random.normal(0, _NOISE, image.shape), 0, 1)
    return {
        "image": np.rint(255 * image).astype(np.uint8),
        "kind": kind,
        "depth": np.where(depth <= FAR, depth, 0).astype(np.float32),
        "normal": (normal @ turn).astype(np.float32),
    }


def _cast_rays(size: int) -> np.ndarray:
    """Return the ray through the centre of each pixel, (right, down, 1), [size, size, 3]."""
    middles = ((np.arange(size) + 0.5) / size - 0.5) / _FOCAL
    right, down = np.meshgrid(middles, middles)
    return np.stack([right, down, np.ones_like(right)], -1)


def _turn_down(angle: float) -> np.ndarray:
    """Return the rotation matrix from the axes of the camera to the axes of the floor, [3, 3]."""
    sine, cosine = np.sin(angle), np.cos(angle)
    return np.array([[1, 0, 0], [0, cosine, sine], [0, -sine, cosine]])


def _turn_round(angle: float) -> np.ndarray:
    """Return a rotation matrix about the vertical axis, [3, 3]."""
    sine, cosine = np.sin(angle), np.cos(angle)
    return np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])


def _draw_light(random: np.random.Generator) -> np.ndarray:
    """Draw the direction to the light, [3], which is above and behind the camera."""
    light = np.array([random.uniform(-1, 1), random.uniform(-1.5, -0.7), random.uniform(-1, -0.2)])
    return light / np.linalg.norm(light)


def _draw_sky(random: np.random.Generator, size: int) -> np.ndarray:
    colour = random.uniform([0.4, 0.5, 0.7], [0.8, 0.9, 1.0])
    return np.tile(colour, [size, size, 1])


def _draw_surfaces(
    random: np.random.Generator, rays: np.ndarray, height: float
) -> Iterator[tuple[int, Hits]]:
    """Yield the kind of each surface, and the points at which rays hit the surface."""
    yield FLOOR, meet_plane(rays, np.array([0.0, -1.0, 0.0]), -height)
    if random.random() < 0.75:
        normal = _turn_round(random.uniform(-0.6, 0.6)) @ np.array([0.0, 0.0, -1.0])
        yield WALL, meet_plane(rays, normal, -random.uniform(4.5, 8.0))
    for _ in range(random.integers(2, 6)):
        away = random.uniform(2.0, 5.0)
        place = np.array([random.uniform(-0.5, 0.5) * away, height, away])
        if random.random() < 0.5:
            radius = random.uniform(0.25, 0.7)
            yield SPHERE, meet_sphere(rays, place - [0, radius, 0], radius)
        else:
            sides = random.uniform(0.2, 0.6, 3)
            turn = _turn_round(random.uniform(0, np.pi / 2))
            yield BOX, meet_box(rays, place - [0, sides[1], 0], sides, turn)


def meet_plane(rays: np.ndarray, normal: np.ndarray, offset: float) -> Hits:
    """Return where rays hit the front of a plane.

    The plane consists of all points p whose dot product with `normal` is `offset`.

    Args:
      rays: the directions of rays from the camera at the origin, [H, W, 3].
      normal: the unit normal on the front of the plane, [3].
      offset: the distance of the plane from the camera along `normal`; below 0 if the camera is in
        front of the plane.
    """
    along = rays @ normal
    with np.errstate(divide="ignore"):
        distances = np.where(along < 0, offset / along, np.inf)
    return Hits(distances, np.broadcast_to(normal, rays.shape))


def meet_sphere(rays: np.ndarray, centre: np.ndarray, radius: float) -> Hits:
    """Return where rays first hit a sphere that does not contain the camera.

    Args:
      rays: the directions of rays from the camera at the origin, [H, W, 3].
      centre: the centre of the sphere, [3].
      radius: the radius of the sphere, above 0.
    """
    squares, along = (rays**2).sum(-1), rays @ centre
    # The equation |t ray - centre|^2 = radius^2 is quadratic in t; the smaller root is the near
    # side.
    root = along**2 - squares * (centre @ centre - radius**2)
    distances = np.where(root > 0, (along - np.sqrt(np.maximum(root, 0))) / squares, np.inf)
    points = np.where(np.isfinite(distances), distances, 0)[..., np.newaxis] * rays
    return Hits(distances, (points - centre) / radius)


def meet_box(rays: np.ndarray, centre: np.ndarray, sides: np.ndarray, turn: np.ndarray) -> Hits:
    """Return where rays first hit a box that does not contain the camera.

    A ray is inside of the box while it is between the two planes of each of the three axes.

    Args:
      rays: the directions of rays from the camera at the origin, [H, W, 3].
      centre: the centre of the box, [3].
      sides: half of the length of each side, [3].
      turn: the rotation matrix of the box, [3, 3].
    """
    # Rotate the rays into the axes of the box.
    rays, start = rays @ turn, -centre @ turn
    with np.errstate(divide="ignore"):
        first, second = ((sign * sides - start) / rays for sign in (-1, 1))
    # The ray is inside of the box from the last entry to the first exit.
    enter, leave = np.minimum(first, second), np.maximum(first, second).min(-1)
    axis, distances = enter.argmax(-1), enter.max(-1)
    facing = -np.sign(np.take_along_axis(rays, axis[..., np.newaxis], -1))
    # The plane at which the ray enters last is the visible side of the box.
    normals = np.eye(3)[axis] * facing @ turn.T
    return Hits(np.where(distances < leave, distances, np.inf), normals)
