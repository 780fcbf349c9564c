"""All rounds dealt at once, so that the key centre can leave before the first one (SPEC 7.1).

What a round asks for depends on sizes alone. A rehearsal with empty uploads and throw-away keys finds out; then every
round's part for S2 is written to a file that is deleted when it is used. S1 needs its seed and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedveil.transport.duo.dealer import Dealer, Keys, Recorder, deal, record
from fedveil.transport.duo.lattice import ring
from fedveil.transport.duo.link import pair, together
from fedveil.transport.duo.material import Sizes
from fedveil.transport.duo.parameters import VECTORS, Plan
from fedveil.transport.duo.round import Round, Server
from fedveil.transport.duo.rules import RULES

Asked = dict[str, list[tuple[str, Sizes]]]
STAGES = ("sums", "entropy", *RULES)
"""What a round may do after its beginning."""


def rehearse(plan: Plan, stages: Sequence[str]) -> Asked:
    """What each stage of a round of ``plan.clients`` uploads asks of the dealer."""
    keys = deal(plan, entropy="entropy" in stages)
    recorder = Recorder(Dealer(keys.s1.seed, keys.s2.seed).mend)
    ends = pair()
    one, two = Server(keys.s1, ends[0]), Server(keys.s2, ends[1], recorder)
    nothing = np.zeros((plan.blocks, 2, VECTORS.levels, ring(VECTORS).degree), np.uint64)
    uploads = [(seat, nothing) for seat in range(plan.clients)]

    def run(round: Round) -> None:
        for stage in stages:
            if stage == "sums":
                round.sense()
            elif stage == "entropy":
                round.indicate()
            else:
                round.aggregate(stage)

    together(lambda: run(one.round(0)), lambda: run(two.round(0, uploads)), ends)
    return {label.rsplit("/", 1)[1]: asked for label, asked in recorder.asked.items()}


def deal_ahead(keys: Keys, folder: Path, rounds: Sequence[int], stages: Sequence[str], attempts: int = 1) -> int:
    """Files of all these rounds for S2, to be used with :func:`~fedveil.transport.duo.dealer.from_files`; bytes.

    Every attempt of every round has its own; stages that a round does not come to are dealt in vain.
    """
    asked, dealer = rehearse(keys.clients.plan, stages), Dealer(keys.s1.seed, keys.s2.seed)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = 0
    for number in rounds:
        for attempt in range(attempts):
            for stage, wanted in asked.items():
                label = f"{number}/{attempt}/{stage}"
                path = folder / (label.replace("/", "-") + ".bin")
                record(dealer.mend(label), wanted, path)
                written += path.stat().st_size
    return written
