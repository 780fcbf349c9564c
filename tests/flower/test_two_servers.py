"""APA-FL with S1, S2 and the key centre on nodes: the same run, over a server that reads none of what they say."""

import pytest
from tests.flower.common import grid_for, in_process, over_nodes, same, training_of
from tests.support import require

require("tenseal")
APA = ("method=apa_fl", "sigma=0.5", "clip_norm=1", "declared_f=1", "cohort=5", "aggregate.window=2")


def test_the_same_run_with_both_servers_on_nodes(tmp_path):
    training = training_of(*APA)
    _, _, here = in_process(training, tmp_path / "here")
    _, _, there, grid = over_nodes(training, tmp_path / "there")
    for e in there.read_events():
        print(e)
    same(here, there, 1e-6)
