"""The reference table of research/accounting.md, 1.5: published and measured values of the Poisson-sampled Gaussian."""

from __future__ import annotations

from typing import NamedTuple

from fedveil.privacy.events import Event, Poisson


class Row(NamedTuple):
    name: str
    q: float
    sigma: float
    steps: int
    delta: float
    moments: float | None
    rdp: float
    """dp-accounting's default orders."""
    six: float | None
    """The source's six orders."""
    pld: float

    @property
    def event(self) -> Event:
        return Event("gaussian", self.sigma, Poisson(self.q), self.steps)


MNIST = 256 / 60000
TABLE = [
    Row("source", 0.01, 1.1, 10000, 1e-5, 6.2798, 5.6320, 5.6543, 5.1926),
    Row("source, 1000", 0.01, 1.1, 1000, 1e-5, 2.0868, 1.7118, 1.7256, 1.5154),
    Row("source, 100", 0.01, 1.1, 100, 1e-5, None, 0.9561, None, 0.5498),
    Row("source, 1", 0.01, 1.1, 1, 1e-5, 1.0880, 0.7751, 0.9188, 0.1423),
    Row("Abadi E=100 (1.26)", 0.01, 4, 10000, 1e-5, 1.2586, 1.0355, 1.0496, 0.9470),
    Row("Abadi E=400 (2.55)", 0.01, 4, 40000, 1e-5, 2.5759, 2.2097, 2.2147, 2.0334),
    Row("sigma 8", 0.01, 8, 10000, 1e-5, 0.6209, 0.4808, 0.5316, 0.4375),
    Row("sigma 4", 0.01, 4, 25000, 1e-5, 2.0150, 1.7075, 1.7284, 1.5665),
    Row("sigma 2", 0.01, 2, 20000, 1e-5, 3.9381, 3.4554, 3.6861, 3.1870),
    Row("MNIST 1.3 (1.19)", MNIST, 1.3, 3515, 1e-5, 1.1921, 0.9544, 1.1857, 0.8645),
    Row("MNIST 1.1 (3.01)", MNIST, 1.1, 14062, 1e-5, 3.0091, 2.5966, 2.6791, 2.3817),
    Row("MNIST 0.7 (7.10)", MNIST, 0.7, 10546, 1e-5, 7.1226, 6.3195, 9.9633, 5.6394),
    Row("McMahan 1e5 z=1 (1.18)", 1e-3, 1, 10000, 1e5**-1.1, 1.1774, 0.8836, 1.1338, 0.5167),
    Row("McMahan 1e6 z=1 (3.06)", 1e-2, 1, 1000, 1e6**-1.1, 3.0647, 2.6341, 3.6424, 2.2974),
    Row("McMahan 1e6 z=3 (0.49)", 1e-3, 3, 10000, 1e6**-1.1, 0.4944, 0.1996, 0.1564, 0.1395),
    Row("10 %, delta 1e-3", 0.1, 1, 100, 1e-3, 6.6251, 5.6551, 7.2251, 4.7844),
    Row("10 %", 0.1, 1, 100, 1e-5, 8.9277, 7.9039, 11.8303, 7.0466),
    Row("10 %, z=2", 0.1, 2, 200, 1e-5, 4.2204, 3.6797, 3.8001, 3.3597),
    Row("everybody", 1, 5, 100, 1e-5, 11.7565, 10.7255, 12.2527, 9.9973),
    Row("one Gaussian", 1, 1, 1, 1e-5, 5.3026, 4.7285, 4.7527, 4.3772),
    Row("low noise", 0.01, 0.5, 1000, 1e-5, 16.8584, 15.4721, 15.4721, 13.3608),
    Row("half", 0.5, 3, 50, 1e-5, 6.8327, 6.1191, 6.2072, 5.6264),
]
SIX = (2, 5, 10, 20, 50, 100)
