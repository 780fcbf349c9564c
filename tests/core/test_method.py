"""Wrong combinations fail when they are built, with a sentence that names the parts."""

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from tests.support import ToyClip, ToyClipEach, ToyNoise

from fedveil.aggregate.mean import Mean
from fedveil.core.errors import Refused
from fedveil.core.flat import Layout
from fedveil.core.method import Method
from fedveil.core.parts import Delivery
from fedveil.core.round import Shares, arrive
from fedveil.core.signal import Signal
from fedveil.core.stage import Chain, Context, chain
from fedveil.core.streams import stream
from fedveil.local.rules import FedAvg, Scaffold
from fedveil.transport.plain import Plain


def make(**slots):
    return Method(**({"name": "toy", "local": FedAvg(), "transport": Plain(), "aggregate": Mean()} | slots))


@dataclass(frozen=True)
class OnlySum:
    reveals = frozenset({"sum"})

    arrived: tuple[int, ...] | None = None

    def carry(self, uploads, weights, ctx):
        here = torch.arange(len(weights)) if self.arrived is None else torch.tensor(self.arrived)
        sums = {k: (weights.to(s.value)[here] @ s.value[here])[None] for k, s in uploads.items()}
        return Delivery(sums, 0, None if self.arrived is None else here)


@dataclass(frozen=True)
class NeedsEach:
    needs = "each"

    def __call__(self, uploads, weights):
        return uploads.mean(weights)


def test_a_plain_method_is_not_private():
    assert not make().private


def test_noise_makes_a_method_private():
    assert make(on_delta=chain(ToyClip(1.0), ToyNoise(1.0))).private
    assert make(on_step=chain(ToyClipEach(1.0), ToyNoise(1.0))).private
    assert make(on_delta=ToyClip(1.0), on_mean=ToyNoise(1.0)).private


def test_noise_without_a_clip():
    with pytest.raises(Refused, match="toy noise: the signal has no bound; put a clip before the noise"):
        make(on_delta=ToyNoise(1.0))


def test_step_clips_do_not_bound_the_move():
    """Once trajectories differ, later gradients of every record differ: per-step bounds do not add up (SPEC 3.1)."""
    with pytest.raises(Refused, match="no bound"):
        make(on_step=ToyClipEach(1.0), on_delta=ToyNoise(1.0))


def test_an_aggregator_that_needs_more_than_the_transport_reveals():
    with pytest.raises(Refused, match=r"NeedsEach needs to see 'each'.*OnlySum reveals only sum"):
        make(transport=OnlySum(), aggregate=NeedsEach())


def test_a_channel_that_leaves_with_no_mechanism():
    """SCAFFOLD's control variates made from the clean move, noise only on the upload: the known total break."""
    with pytest.raises(Refused, match="channel 'control' leaves the clients and no privacy mechanism"):
        make(local=Scaffold(), on_upload=chain(ToyClip(1.0), ToyNoise(1.0)))


def test_control_variates_from_the_noisy_move_are_accepted():
    assert make(local=Scaffold(), on_delta=chain(ToyClip(1.0), ToyNoise(1.0))).private


def test_weights_by_private_counts_under_privacy():
    with pytest.raises(Refused, match="weights=uniform"):
        make(on_delta=chain(ToyClip(1.0), ToyNoise(1.0)), weights="examples")


def test_an_unknown_weighting():
    with pytest.raises(Refused, match="toy.weights: 'size' is unknown.*examples, uniform"):
        make(weights="size")


def test_a_per_sample_stage_in_the_wrong_place():
    for slots in ({"on_delta": ToyClipEach(1.0)}, {"on_step": chain(ToyClip(1.0), ToyClipEach(1.0))}):
        with pytest.raises(Refused, match="ToyClipEach looks at single examples.*put it first in on_step"):
            make(**slots)


def test_chains_are_associative_and_the_empty_chain_is_the_identity():
    a, b, c = ToyClip(1.0), ToyClip(2.0), ToyClip(3.0)
    assert chain(chain(a, b), c) == chain(a, chain(b, c)) == Chain((a, b, c))
    assert chain(chain(), a, chain()) == chain(a)


def test_the_share_of_a_cohort():
    sizes = torch.tensor([10, 30, 60])
    assert make().share(sizes[:2], sizes, 1) == pytest.approx(2 / 3)
    assert make(weights="examples").share(sizes[:2], sizes, 1) == pytest.approx(0.4)
    assert make(weights="examples").weigh(sizes, 1).tolist() == [0.1, 0.3, 0.6]


def test_a_secret_cohort_is_divided_by_its_expected_size():
    """The realised size would tell who came (SPEC 1)."""
    central = make(on_delta=ToyClip(1.0), on_mean=ToyNoise(1.0))
    sizes = torch.tensor([10, 30, 60])
    assert central.fixed_divisor
    assert central.weigh(sizes[:2], 4).tolist() == [0.25, 0.25]
    assert central.share(sizes[:2], sizes, 1) == pytest.approx(1 / 3)
    local = make(on_delta=chain(ToyClip(1.0), ToyNoise(1.0)))
    assert not local.fixed_divisor
    assert local.weigh(sizes[:2], 4).tolist() == [0.5, 0.5]


def test_a_method_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().name = "other"


def test_a_transport_that_sums_gives_the_same_mean():
    rows = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))
    shares = Shares(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), torch.ones(3, 1), 1.0, 1.0)
    server = FedAvg().start(torch.zeros(24))
    means = [
        arrive(make(transport=t), {"move": Signal(rows)}, shares, server, three()).server["w"]
        for t in (Plain(), OnlySum())
    ]
    assert torch.allclose(means[0], means[1])


def three():
    streams = [stream(0, "client", k) for k in range(3)]
    return Context(1, Layout(("a",), ((24,),)), [0, 1, 2], streams, server=stream(0, "server"))


def test_who_does_not_arrive_takes_no_part():
    rows = torch.randn(3, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = Shares(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), torch.ones(3, 1), 0.6, 1.0)
    server = FedAvg().start(torch.zeros(24, dtype=torch.float64))
    found = arrive(make(transport=OnlySum((0, 2))), {"move": Signal(rows)}, shares, server, three())
    assert torch.allclose(found.server["w"], (0.2 * rows[0] + 0.5 * rows[2]) / 0.7)
    assert found.arrived.tolist() == [0, 2]
    left = shares.of(found.arrived, fixed=False)
    assert left.share == pytest.approx(0.6 * 0.7)
    assert left.weights.tolist() == pytest.approx([2 / 7, 5 / 7])


def test_under_a_fixed_divisor_who_does_not_arrive_counts_as_zero():
    rows = torch.ones(3, 24, dtype=torch.float64)
    shares = Shares(torch.full((3,), 1 / 3, dtype=torch.float64), torch.ones(3, 1), 1.0, 1.0, 1 / 3)
    central = make(transport=OnlySum((0, 2)), on_delta=chain(ToyClip(100.0)), on_mean=chain(ToyNoise(1e-9)))
    assert central.fixed_divisor
    server = FedAvg().start(torch.zeros(24, dtype=torch.float64))
    found = arrive(central, {"move": Signal(rows, 100.0, "client")}, shares, server, three())
    assert torch.allclose(found.server["w"], torch.full((24,), 2 / 3, dtype=torch.float64), atol=1e-6)
    assert shares.of(found.arrived, fixed=True).share == 1.0
