"""Draw traffic signs of 32x32 pixels: the shapes, colours and symbols of German signs, for whoever has no photographs.

    python examples/signs/draw.py drawings

A file has the name of its class, with hyphens. The drawings are free of anybody's rights but the project's.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIDE = 32
FINE = 256  # drawn at this size, then averaged
MIDDLE = FINE // 2
LIGHT = 0.85

WHITE, BLACK, RED, BLUE, YELLOW = (236, 236, 232), (28, 28, 30), (200, 38, 44), (24, 84, 176), (246, 184, 30)
SKY, HEDGE = (164, 182, 204), (92, 104, 84)

Point = tuple[float, float]
Colour = tuple[int, int, int]
Pen = ImageDraw.ImageDraw


def disc(pen: Pen, radius: float, colour: Colour) -> None:
    pen.ellipse((MIDDLE - radius, MIDDLE - radius, MIDDLE + radius, MIDDLE + radius), fill=colour)


def regular(pen: Pen, corners: int, radius: float, colour: Colour, *, first: float, centre: float = MIDDLE) -> None:
    """A regular polygon; `first` is the angle of a corner, in degrees clockwise from the right."""
    angles = [math.radians(first + 360 * corner / corners) for corner in range(corners)]
    pen.polygon([(MIDDLE + radius * math.cos(a), centre + radius * math.sin(a)) for a in angles], fill=colour)


def words(pen: Pen, text: str, size: int, colour: Colour, *, bold: int, width: float = 1.0) -> None:
    """Text in the middle, narrowed to `width` of its own, as on signs."""
    sheet = Image.new("L", (2 * FINE, FINE))
    font = ImageFont.load_default(size)
    ImageDraw.Draw(sheet).text((FINE, MIDDLE), text, 255, font, anchor="mm", stroke_width=bold)
    narrow = sheet.resize((round(2 * FINE * width), FINE))
    pen.bitmap((MIDDLE - narrow.width // 2, 0), narrow, fill=colour)


def arrow(pen: Pen, path: Sequence[Point], *, thick: int = 30, head: float = 48) -> None:
    """A white arrow along a path, whose last stretch has its direction."""
    (x0, y0), (x1, y1) = path[-2:]
    length = math.hypot(x1 - x0, y1 - y0)
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    pen.line([*path[:-1], (x1 - dx * head / 2, y1 - dy * head / 2)], fill=WHITE, width=thick, joint="curve")
    back = (x1 - dx * head, y1 - dy * head)
    sides = [(back[0] - sign * dy * head * 0.9, back[1] + sign * dx * head * 0.9) for sign in (1, -1)]
    pen.polygon([(x1, y1), *sides], fill=WHITE)


def mirrored(path: Sequence[Point]) -> list[Point]:
    return [(FINE - x, y) for x, y in path]


def ring(pen: Pen) -> None:
    """What prohibitions have in common: a red ring around white."""
    disc(pen, 116, RED)
    disc(pen, 84, WHITE)


def warning(pen: Pen) -> None:
    """What warnings have in common: a red triangle around white."""
    regular(pen, 3, 136, RED, first=-90, centre=152)
    regular(pen, 3, 84, WHITE, first=-90, centre=154)


def order(pen: Pen) -> None:
    """What orders have in common: a blue disc with a thin white edge."""
    disc(pen, 118, WHITE)
    disc(pen, 112, BLUE)


def speed_limit(pen: Pen, number: int) -> None:
    ring(pen)
    words(pen, str(number), 118 if number < 100 else 96, BLACK, bold=5, width=0.92 if number < 100 else 0.8)


def stop(pen: Pen) -> None:
    regular(pen, 8, 124, WHITE, first=22.5)
    regular(pen, 8, 116, RED, first=22.5)
    words(pen, "STOP", 88, WHITE, bold=4, width=0.8)


def give_way(pen: Pen) -> None:
    regular(pen, 3, 136, RED, first=90, centre=104)
    regular(pen, 3, 84, WHITE, first=90, centre=102)


def priority_road(pen: Pen) -> None:
    regular(pen, 4, 122, BLACK, first=0)
    regular(pen, 4, 116, WHITE, first=0)
    regular(pen, 4, 78, YELLOW, first=0)


def no_entry(pen: Pen) -> None:
    disc(pen, 120, WHITE)
    disc(pen, 114, RED)
    pen.rectangle((44, 108, 212, 148), fill=WHITE)


def no_passing(pen: Pen) -> None:
    ring(pen)
    for left, colour in ((60, RED), (132, BLACK)):
        pen.rounded_rectangle((left, 120, left + 64, 148), 8, fill=colour)
        pen.rounded_rectangle((left + 12, 100, left + 52, 130), 8, fill=colour)
        for wheel in (left + 4, left + 46):
            pen.rectangle((wheel, 144, wheel + 14, 158), fill=colour)


def general_caution(pen: Pen) -> None:
    warning(pen)
    pen.polygon([(116, 108), (140, 108), (134, 164), (122, 164)], fill=BLACK)
    pen.ellipse((117, 170, 139, 190), fill=BLACK)


def right_of_way(pen: Pen) -> None:
    warning(pen)
    pen.polygon([(128, 94), (144, 122), (136, 122), (136, 194), (120, 194), (120, 122), (112, 122)], fill=BLACK)
    pen.rectangle((96, 146, 160, 160), fill=BLACK)


TURN = [(96, 196), (96, 128), (104, 108), (124, 100), (206, 100)]
KEEP = [(84, 76), (184, 184)]


def roundabout(pen: Pen) -> None:
    order(pen)
    for begin in (0, 120, 240):
        # The head lies along the tangent where the arc begins: traffic runs against the clock.
        pen.arc((52, 52, 204, 204), begin + 20, begin + 110, fill=WHITE, width=24)
        angle = math.radians(begin + 20)
        x, y = MIDDLE + 64 * math.cos(angle), MIDDLE + 64 * math.sin(angle)
        ahead, out = (math.sin(angle), -math.cos(angle)), (math.cos(angle), math.sin(angle))
        tip = (x + 40 * ahead[0], y + 40 * ahead[1])
        pen.polygon([tip, *((x + sign * 30 * out[0], y + sign * 30 * out[1]) for sign in (1, -1))], fill=WHITE)


def ordered(path: Sequence[Point]) -> Callable[[Pen], None]:
    def drawn(pen: Pen) -> None:
        order(pen)
        arrow(pen, path)

    return drawn


def limited(number: int) -> Callable[[Pen], None]:
    return lambda pen: speed_limit(pen, number)


SIGNS: dict[str, Callable[[Pen], None]] = {
    "stop": stop,
    "yield": give_way,
    "priority road": priority_road,
    "no entry": no_entry,
    **{f"speed limit {number}": limited(number) for number in (20, 30, 50, 60, 70, 80, 100, 120)},
    "no vehicles": ring,
    "no passing": no_passing,
    "general caution": general_caution,
    "right of way at next intersection": right_of_way,
    "turn right ahead": ordered(TURN),
    "turn left ahead": ordered(mirrored(TURN)),
    "ahead only": ordered([(MIDDLE, 204), (MIDDLE, 50)]),
    "keep right": ordered(KEEP),
    "keep left": ordered(mirrored(KEEP)),
    "roundabout": roundabout,
}
"""What draws each class, by the name that the model's card has for it."""


def draw(name: str) -> Image.Image:
    """The sign of a class before sky and hedge, as a camera sees it: blurred by a pixel, not in full light."""
    picture = Image.new("RGB", (FINE, FINE))
    pen = ImageDraw.Draw(picture)
    for row in range(FINE):
        shade = tuple(round(sky + (hedge - sky) * row / FINE) for sky, hedge in zip(SKY, HEDGE, strict=True))
        pen.line((0, row, FINE, row), fill=shade)
    SIGNS[name](pen)
    seen = picture.filter(ImageFilter.GaussianBlur(FINE / SIDE)).point(lambda level: round(LIGHT * level))
    return seen.resize((SIDE, SIDE), Image.Resampling.BOX)


def file_name(name: str) -> str:
    return f"{name.replace(' ', '-')}.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name in SIGNS:
        draw(name).save(out / file_name(name))
    print(f"{len(SIGNS)} drawings in {out}")


if __name__ == "__main__":
    main()
