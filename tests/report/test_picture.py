"""Pictures that are written without an image library can be read by one."""

import struct
import zlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedveil.report.picture import picture, plane, png


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_a_png_holds_its_pixels(height, width, seed):
    values = torch.rand(height, width, generator=torch.Generator().manual_seed(seed))
    data, at, chunks = png(values), 8, {}
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (width, height, 8, 0, 0, 0, 0)
    rows = torch.frombuffer(bytearray(zlib.decompress(chunks[b"IDAT"])), dtype=torch.uint8).view(height, width + 1)
    assert torch.equal(rows[:, 0], torch.zeros(height, dtype=torch.uint8))
    assert torch.equal(rows[:, 1:], (values * 255).round().to(torch.uint8))


def test_examples_of_every_shape_become_a_plane():
    x = torch.arange(12.0)
    assert plane(x, (3, 2, 2)).shape == (2, 2) and float(plane(x, (3, 2, 2))[0, 0]) == 4.0
    assert plane(x, (3, 4)).shape == (3, 4) and plane(x, (12,)).shape == (1, 12)
    assert 'alt="a &lt;b&gt;"' in picture(torch.ones(2, 2), "a <b>")
