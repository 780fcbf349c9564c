"""What the server takes in: uploads that are there, of the right shape, and made of finite numbers (SPEC 7.7).

Numbers beyond 10^60, which float64 has, count as not finite: fourth powers of their lengths, which detectors sum, are
beyond any format, so that one such upload would end the round for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedveil.core.parts import Uploads

LARGEST = 1e60
"""No number of an upload may be larger."""

Instead = Mapping[int, Mapping[str, Tensor] | str | None]
"""By row, what arrived in place of an upload: vectors by channel, nothing (None), or in words what is wrong with it."""


def faults(uploads: Uploads, instead: Instead) -> dict[int, str]:
    """Rows that the server cannot use, each with the reason; every channel must be usable.

    Where the server sees single uploads it looks at each. Where it sees only a sum, a number that is not finite has
    no encoding in it, so that its sender cannot take part.

    >>> from fedveil.core.signal import Signal
    >>> faults({"move": Signal(torch.tensor([[1.0], [torch.nan]]))}, {0: None})
    {0: 'no upload', 1: 'move: not finite'}
    """
    found: dict[int, str] = {}
    for row, sent in instead.items():
        found[row] = sent if isinstance(sent, str) else "no upload" if sent is None else _shape(sent, uploads)
    for name, signal in uploads.items():
        wide = signal.value.dtype == torch.float64
        if bool(torch.isfinite(signal.value.sum())) and not (wide and bool((signal.value.abs() > LARGEST).any())):
            continue
        broken = ~(signal.value.abs() <= LARGEST if wide else torch.isfinite(signal.value)).all(dim=1)
        for row in broken.nonzero()[:, 0].tolist():
            found.setdefault(row, f"{name}: not finite")
    return dict(sorted(found.items()))


def _shape(sent: Mapping[str, Tensor], uploads: Uploads) -> str:
    wrong = [(n, v) for n, v in sent.items() if n not in uploads or v.shape != (uploads[n].dim,)]
    if not wrong:
        return "incomplete"
    name, value = wrong[0]
    expected = f"({uploads[name].dim},)" if name in uploads else "nothing"
    return f"{name}: shape {tuple(value.shape)} instead of {expected}"
