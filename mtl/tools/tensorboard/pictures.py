"""Draws PNG pictures for TensorBoard: confusion matrices, curves, and images with predictions.

png = pictures.draw_matrix(counts, ["cat", "dog"], "animal")          # Picture(width, height, png)
png = pictures.draw_rows(images, [["digit: 7"], ["digit: 3, was 8"]], [True, False])

Pillow draws the pictures, and is imported when the first picture is drawn.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import checks

MOST_IMAGES = 100
# A confusion matrix shows numbers for up to 20 classes, and names for up to 50 classes.
_MOST_NUMBERS, _MOST_NAMES = 20, 50
_WIDEST_NAME = 12
_SIDE, _TEXT, _GAP = 112, 13, 8
_INK, _PAPER, _RIGHT, _WRONG = (32, 32, 32), (255, 255, 255), (27, 108, 168), (209, 73, 91)
_FAINT = (200, 200, 200)
# Curves use these colours in turn. A curve with few points has a dot at each point.
_COLORS = (_RIGHT, _WRONG, (46, 139, 87), (224, 159, 62), (108, 74, 182), (95, 107, 109))
_MOST_DOTS = 15
_COLOR = np.array([27, 108, 168])


class Picture(NamedTuple):
    """A picture in PNG format.

    Attributes:
      width: the width in pixels.
      height: the height in pixels.
      png: the content of the PNG file.
    """

    width: int
    height: int
    png: bytes


def require_pillow(where: str) -> None:
    """Fail unless a recent version of Pillow is installed.

    Args:
      where: the name of the setting that needs Pillow; error messages contain this name.

    Raises:
      UserError: Pillow is missing or older than 10.1.
    """
    try:
        from PIL import ImageFont

        # Older versions of Pillow do not have the argument for the size, and raise a TypeError.
        ImageFont.load_default(_TEXT)
    except (ImportError, TypeError):
        rule = "be False without the package pillow, from 10.1 on"
        checks.fail(where, rule, True, "pip install 'pillow>=10.1' installs it.")


def draw_matrix(cells: np.ndarray, names: Sequence[str], title: str) -> Picture:
    """Draw a confusion matrix, in which the colour of a cell shows its share of the row.

    Args:
      cells: the sum of weights for each [true class, predicted class], [C, C].
      names: the names of the C classes.
      title: the text above the picture.
    """
    count = len(names)
    # The side of a cell in pixels keeps the whole picture below about 1,000 pixels.
    side = max(2, min(46, 900 // count))
    with_names, with_numbers = count <= _MOST_NAMES, count <= _MOST_NUMBERS
    short_names = [_shorten_name(name) for name in names]
    # A letter is about 7 pixels wide.
    margin = 8 + 7 * max(map(len, short_names)) if with_names else 24
    size = margin + side * count + _GAP
    heading = f"{title}: true down, predicted across"
    wide = _GAP * 2 + _load_font().getlength(heading)
    image, draw, font = _start_picture(max(size, wide), size + 2 * _TEXT)
    draw.text((_GAP, 2), heading, _INK, font)
    top = margin + 2 * _TEXT
    # `maximum` makes the shares of a class without rows 0.
    shares = cells / np.maximum(cells.sum(axis=1, keepdims=True), 1e-12)
    for row in range(count):
        for column in range(count):
            share = float(shares[row, column])
            color = tuple(np.round(255 + (_COLOR - 255) * share).astype(int).tolist())
            x, y = margin + column * side, top + row * side
            draw.rectangle((x, y, x + side - 1, y + side - 1), color)
            if with_numbers and cells[row, column]:
                # Numbers on dark cells are white.
                ink = _PAPER if share > 0.5 else _INK
                center = (x + side / 2, y + side / 2)
                draw.text(center, _write_number(cells[row, column]), ink, font, anchor="mm")
    for place, name in enumerate(short_names if with_names else ()):
        middle = top + (place + 0.5) * side
        draw.text((margin - 4, middle), name, _INK, font, anchor="rm")
        _write_upright(image, font, name, margin + (place + 0.5) * side, top - 4)
    return _finish_picture(image)


def draw_shares(lines: Mapping[str, Sequence[tuple[float, float]]], title: str) -> Picture:
    """Draw curves in the unit square, with the diagonal of the square.

    Args:
      lines: {name of a curve: [(x, y), ...]}, with x and y in [0, 1]; points with NaN are left out.
      title: the text above the picture.
    """
    names, side = [_shorten_name(name) for name in lines], 3 * _SIDE
    rows = names if len(names) > 1 else []
    # A single curve needs no legend, because the title names it.
    legend = 2 * _GAP + 24 + 7 * max(map(len, rows), default=0) if rows else 0
    heading, left_edge, top = _load_font().getlength(title), 3 * _TEXT, 2 * _TEXT
    wide = max(left_edge + side + _GAP + legend, heading + 2 * _GAP)
    image, draw, font = _start_picture(wide, max(top + side, top + len(rows) * _TEXT) + 2 * _TEXT)
    draw.text((_GAP, 2), title, _INK, font)

    def place(x: float, y: float) -> tuple[float, float]:
        return left_edge + x * side, top + (1 - y) * side

    draw.rectangle((*place(0, 1), *place(1, 0)), outline=_INK)
    draw.line((place(0, 0), place(1, 1)), _FAINT)
    for tick in (0, 0.5, 1):
        x, y = place(tick, tick)
        draw.text((left_edge - 4, y), f"{tick:g}", _INK, font, anchor="rm")
        draw.text((x, top + side + 3), f"{tick:g}", _INK, font, anchor="mt")
    for number, points in enumerate(lines.values()):
        color = _COLORS[number % len(_COLORS)]
        corners = [place(*point) for point in points if not np.isnan(point).any()]
        _draw_curve(draw, corners, color)
        if rows:
            x, y = left_edge + side + 2 * _GAP, top + number * _TEXT
            draw.line((x, y + _TEXT / 2, x + 16, y + _TEXT / 2), color, 2)
            draw.text((x + 22, y), rows[number], _INK, font)
    return _finish_picture(image)


def _draw_curve(draw: Any, points: Sequence[tuple[float, float]], color: Any) -> None:
    """Draw a curve through points, with a dot at each point if there are few."""
    if len(points) > 1:
        draw.line(points, color, 2)
    if len(points) <= _MOST_DOTS:
        for x, y in points:
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), color)


def draw_rows(
    images: np.ndarray, captions: Sequence[Sequence[str]], are_right: Sequence[Sequence[bool]]
) -> Picture:
    """Draw a sheet of images with a caption below each image.

    Args:
      images: [N, H, W, C], with values in [0, 1]. If the number of channels C is not 1, 3 or 4,
        only the first channel is drawn.
      captions: the lines of text of each caption, for N captions with equally many lines.
      are_right: for each line of each caption, True if the line is right. A line with False is red.
    """
    from PIL import Image

    count, lines = len(images), max(map(len, captions), default=0)
    # The number of columns makes the sheet about square.
    columns = min(count, max(4, math.ceil(math.sqrt(count))))
    width = max(_SIDE, 7 * max((len(line) for text in captions for line in text), default=0))
    tile = width + _GAP, _SIDE + lines * _TEXT + 2 * _GAP
    sheet, draw, font = _start_picture(columns * tile[0], math.ceil(count / columns) * tile[1])
    for place, values in enumerate(images):
        x, y = place % columns * tile[0], place // columns * tile[1]
        # Clip values, because a value above 1 would overflow to a dark colour.
        pixels = np.clip(np.nan_to_num(values) * 255, 0, 255).astype(np.uint8)
        if pixels.shape[-1] not in (1, 3, 4):
            pixels = pixels[..., :1]
        picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert(
            "RGB"
        )
        scale = _SIDE / max(picture.size)
        size = [max(1, round(edge * scale)) for edge in picture.size]
        # Enlarge pixels without smoothing; smooth an image that becomes smaller.
        scaled_picture = picture.resize(size, Image.Resampling.NEAREST if scale > 1 else None)
        sheet.paste(scaled_picture, (x, y))
        for line, (text, is_right) in enumerate(
            zip(captions[place], are_right[place], strict=True)
        ):
            color = _RIGHT if is_right else _WRONG
            draw.text((x, y + _SIDE + 2 + line * _TEXT), text, color, font)
    return _finish_picture(sheet)


def _start_picture(width: float, height: float) -> tuple[Any, Any, Any]:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (math.ceil(width), math.ceil(height)), _PAPER)
    return image, ImageDraw.Draw(image), _load_font()


def _load_font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(_TEXT - 2)


def _finish_picture(image: Any) -> Picture:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return Picture(image.width, image.height, file.getvalue())


def _write_upright(image: Any, font: Any, text: str, x: float, bottom: float) -> None:
    """Write a text that runs upwards, centred at x."""
    from PIL import Image, ImageDraw

    length = max(1, math.ceil(font.getlength(text)))
    label = Image.new("RGB", (length, _TEXT + 2), _PAPER)
    ImageDraw.Draw(label).text((0, 0), text, _INK, font)
    # Pillow cannot write upwards, so rotate the text.
    upright = label.rotate(90, expand=True)
    image.paste(upright, (round(x - upright.width / 2), round(bottom - upright.height)))


def _shorten_name(name: str) -> str:
    return name if len(name) <= _WIDEST_NAME else f"{name[: _WIDEST_NAME - 1]}…"


def _write_number(value: float) -> str:
    """Return a sum of weights as text with at most five characters."""
    if value == round(value) and value < 100_000:
        return str(round(value))
    return f"{value:.3g}" if value < 1000 else f"{value / 1000:.3g}k"
