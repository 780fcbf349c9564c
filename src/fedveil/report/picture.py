"""Small grey pictures as PNG inside a page; the format in its simplest form, so that no image library is needed."""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape

import torch
from torch import Tensor

SIDE = 96
"""Pixels of a picture's longer side on the page."""


def png(values: Tensor) -> bytes:
    """Rows and columns of numbers from 0 (black) to 1 (white) as a PNG file with 256 shades.

    >>> png(torch.zeros(2, 2))[:4]
    b'\\x89PNG'
    """
    height, width = values.shape
    grey = (values.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    rows = b"".join(b"\0" + row.tobytes() for row in grey)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


def plane(vector: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An example as a plane: images as they are (colours averaged), anything else as one row."""
    if len(shape) == 3:
        return vector.view(shape).mean(dim=0)
    return vector.view(shape) if len(shape) == 2 else vector.view(1, -1)


def picture(values: Tensor, words: str) -> str:
    """A plane as an image element; its darkest number black, its brightest white."""
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low) if high > low else torch.zeros_like(values)
    height, width = values.shape
    each = max(1, SIDE // max(height, width))
    data = base64.b64encode(png(scaled)).decode()
    style = f"image-rendering:pixelated;width:{each * width}px;height:{max(each * height, 12)}px"
    return f'<img alt="{escape(words)}" style="{style}" src="data:image/png;base64,{data}">'
