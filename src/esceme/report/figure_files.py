"""Files of drawings: SVG as it is, PDF and PNG converted from it, and animated GIF."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from esceme.errors import ConfigError
from esceme.files import atomic_open, write_text

if TYPE_CHECKING:
    from PIL.Image import Image

FIGURE_SUFFIXES = (".svg", ".pdf", ".png")
POINTS_PER_PIXEL = 0.75
"""Size of an SVG pixel in a PDF."""
PIXEL_RATIO, GIF_PIXEL_RATIO = 2.0, 1.0
"""Pixels of a PNG and of a GIF per SVG pixel."""
SECONDS_PER_STEP, LAST_SECONDS = 1.0, 3.0
"""Duration of a frame of a GIF, and of the last frame."""


def check_figure_path(path: Path, suffixes: Sequence[str] = FIGURE_SUFFIXES) -> Path:
    """Return `path`; raise `ConfigError` if its suffix is not one of `suffixes`."""
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{path}: expected a file name that ends in {' or '.join(suffixes)}")
    return path


def write_figure(drawing: str, path: str | Path) -> None:
    """Write a drawing, a complete SVG document, to an `.svg`, `.pdf` or `.png` file.

    In PDF and PNG, letters outside Western European alphabets appear as boxes.
    """
    path = check_figure_path(Path(path))
    if path.suffix.lower() == ".svg":
        write_text(path, drawing)
    elif path.suffix.lower() == ".pdf":
        with atomic_open(path) as file:
            file.write(_to_pdf(drawing))
    else:
        with atomic_open(path) as file:
            _to_image(drawing, PIXEL_RATIO).save(file, "PNG", optimize=True)


def write_gif(drawings: Sequence[str], path: str | Path) -> None:
    """Write drawings of equal size as the frames of an animated GIF that loops forever.

    The octree keeps rare colours, such as those of symbols, beside the many colours of panoramas.
    """
    from PIL import Image as Images

    path = check_figure_path(Path(path), (".gif",))
    frames = [
        _to_image(drawing, GIF_PIXEL_RATIO)
        .convert("RGB")
        .quantize(255, method=Images.Quantize.FASTOCTREE, dither=Images.Dither.NONE)
        for drawing in drawings
    ]
    seconds = [SECONDS_PER_STEP] * (len(frames) - 1) + [LAST_SECONDS]
    durations = [round(1000 * duration) for duration in seconds]
    with atomic_open(path) as file:
        frames[0].save(
            file, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, disposal=1
        )


def _to_pdf(drawing: str) -> bytes:
    from reportlab.graphics import renderPDF
    from svglib.svglib import svg2rlg

    content: bytes = renderPDF.drawToString(svg2rlg(BytesIO(drawing.encode())), invariant=1)
    return content


def _to_image(drawing: str, pixel_ratio: float) -> Image:
    import pypdfium2

    with pypdfium2.PdfDocument(_to_pdf(drawing)) as document:
        image: Image = document[0].render(scale=pixel_ratio / POINTS_PER_PIXEL).to_pil()
    return image
