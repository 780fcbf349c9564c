import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAvg, FedMedian
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod
from tests.flower.grid import LocalGrid

from fedveil.aggregate.controllers import Adaptive
from fedveil.aggregate.krum import Krum, MultiKrum
from fedveil.aggregate.mean import Mean
from fedveil.aggregate.order import Median, TrimmedMean
from fedveil.core.errors import Refused
from fedveil.flower import FedVeilStrategy, LedgerAccountant
from fedveil.privacy.clip import ClipEach, clip
from fedveil.privacy.noise import gaussian

SHAPES = {"layer.weight": (3, 2), "layer.bias": (3,)}


def start_arrays():
    record = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()})
    record["seen"] = Array(np.asarray(7, np.int64))
    return record


def app(step=lambda node: float(node), examples=lambda node: node, mods=()):
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(msg, ctxt):
        arrays = msg.content["arrays"]
        out = ArrayRecord()
        for name, array in arrays.items():
            value = array.numpy()
            more = step(ctxt.node_id) if value.dtype.kind == "f" else 1
            out[name] = Array(np.asarray(value + np.asarray(more, value.dtype)))
        metrics = MetricRecord({"num-examples": examples(ctxt.node_id), "loss": 0.5})
        return Message(RecordDict({"arrays": out, "metrics": metrics}), reply_to=msg)

    return made


def run(strategy, grid, rounds=1):
    return strategy.start(grid, start_arrays(), num_rounds=rounds)


def options(**more):
    return {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1, **more}


def test_the_mean_is_flowers_own_mean():
    nodes = [1, 2, 3, 4]
    ours = run(FedVeilStrategy(**options()), LocalGrid(app(), nodes), 3).arrays
    theirs = run(FedAvg(**options()), LocalGrid(app(), nodes), 3).arrays
    for name in SHAPES:
        np.testing.assert_allclose(ours[name].numpy(), theirs[name].numpy(), rtol=1e-6)
        assert ours[name].numpy().dtype == np.float32 and ours[name].numpy().shape == SHAPES[name]
    assert ours["seen"].numpy() == 7 + 3 and ours["seen"].numpy().dtype == np.int64


def test_the_median_is_flowers_own_median():
    nodes = [1, 2, 3, 4, 9]
    ours = run(FedVeilStrategy(Median(), **options()), LocalGrid(app(), nodes)).arrays
    theirs = run(FedMedian(**options()), LocalGrid(app(), nodes)).arrays
    for name in SHAPES:
        np.testing.assert_allclose(ours[name].numpy(), theirs[name].numpy(), rtol=1e-6)


@pytest.mark.parametrize("rule", [Krum(1), MultiKrum(1), TrimmedMean(1), Median()])
def test_one_attacker_among_seven_does_no_harm(rule):
    grid = LocalGrid(app(lambda node: 1e6 if node == 4 else 1 + node / 100), range(1, 8))
    moved = run(FedVeilStrategy(rule, **options()), grid).arrays["layer.bias"].numpy()
    assert np.all((moved >= 1) & (moved <= 1.1))
    plain = run(FedVeilStrategy(**options(), weights="uniform"), grid).arrays["layer.bias"].numpy()
    assert np.all(plain > 1e5)


def test_malformed_replies_are_left_out(caplog):
    def reply(arrays):
        return lambda msg: Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=msg)

    good = {name: Array(np.full(shape, 1e9, np.float32)) for name, shape in SHAPES.items()} | {
        "seen": Array(np.asarray(1, np.int64))
    }
    broken = {
        3: reply(good | {"layer.bias": Array(np.full(4, 1e9, np.float32))}),
        4: reply(good | {"layer.bias": Array(np.full(3, np.nan, np.float32))}),
        5: reply({"layer.bias": good["layer.bias"]}),
        6: reply(good | {"layer.bias": Array(np.zeros(3, np.int64))}),
        7: reply(good | {"layer.bias": Array("float32", (3,), "numpy.ndarray", b"no array")}),
        8: lambda msg: Message(RecordDict({}), reply_to=msg),
    }
    with caplog.at_level("WARNING", "flwr"):
        moved = run(FedVeilStrategy(Mean(), **options()), LocalGrid(app(), range(1, 9), broken)).arrays
    np.testing.assert_allclose(moved["layer.bias"].numpy(), 5 / 3, rtol=1e-6)  # nodes 1 and 2, by their examples
    left_out = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(left_out) == 6, left_out


def test_too_few_for_the_rule_leaves_the_model_as_it_is():
    result = run(FedVeilStrategy(Krum(1), **options()), LocalGrid(app(), [1, 2]))
    assert not result.arrays


def test_a_controller_remembers():
    strategy = FedVeilStrategy(Adaptive(byzantine=1), **options())
    run(strategy, LocalGrid(app(lambda node: 1 + node / 10), range(1, 10)), 3)
    assert strategy.learned


def config(sampling, relation=NeighboringRelation.ADD_OR_REMOVE_ONE, budget=8.0, population=40):
    return PrivacyConfig(1e-5, population, relation, sampling, budget)


def private(books, **more):
    settings = {"population": 40, "cohort": 8, "selection": "poisson"} | more
    return FedVeilStrategy(
        Mean(), on_upload=clip(norm=1.0), on_mean=gaussian(multiplier=1.5), accountant=books, **settings, **options()
    )


def test_poisson_cohorts_noise_and_the_ledger(tmp_path):
    books = LedgerAccountant(config(SamplingMethod.POISSON), journal=tmp_path / "ledger.jsonl")
    grid = LocalGrid(app(lambda node: 0.0), range(1, 41))
    result = run(private(books), grid, 30)
    sizes = [len(asked) for asked in grid.asked if asked]
    # Binomial(40, 0.2), 30 times: the mean 8 has deviation 0.46; always 8 would be no Poisson draw.
    assert 6 < np.mean(sizes) < 10 and len(set(sizes)) > 2
    assert books.num_releases == 30
    assert books.get_epsilon(1e-5) == pytest.approx(expected(30), rel=1e-9)
    # All moves are zero: what is left is noise of deviation 1.5 / 8 per round and coordinate, 9 coordinates.
    values = np.concatenate([result.arrays[name].numpy().ravel() for name in SHAPES])
    assert 0.3 < np.sqrt(np.mean(values**2)) / (1.5 / 8 * np.sqrt(30)) < 2.1  # chi, 9 degrees: beyond once in 10^5
    assert not result.train_metrics_clientapp  # clients' metrics would leave without noise
    again = LedgerAccountant(config(SamplingMethod.POISSON), journal=tmp_path / "ledger.jsonl")
    assert again.num_releases == 30


def expected(rounds):
    from fedveil.privacy.accountants import epsilon
    from fedveil.privacy.events import Event, Poisson

    return epsilon(Event("gaussian", 1.5, Poisson(0.2), rounds, "add_remove"), 1e-5, "pld")


def test_nothing_is_released_beyond_the_budget():
    books = LedgerAccountant(config(SamplingMethod.POISSON, budget=1.5), accountant="rdp")
    grid = LocalGrid(app(), range(1, 41))
    with pytest.raises(PrivacyBudgetExhausted, match="would exceed"):
        run(private(books), grid, 1000)
    assert 0 < books.get_epsilon(1e-5) <= 1.5
    assert books.num_releases == len([1 for asked in grid.asked if asked]) or books.num_releases >= len(grid.asked) // 2


def test_a_clipped_client_moves_the_mean_by_no_more_than_its_share():
    def far(node):
        return 1e8 if node == 1 else 0.0

    strategy = FedVeilStrategy(
        Mean(), on_upload=clip(norm=1.0), on_mean=gaussian(multiplier=1e-4), population=4, cohort=4, seed=0, **options()
    )
    moved = run(strategy, LocalGrid(app(far), range(1, 5))).arrays
    length = np.sqrt(sum(np.sum(moved[name].numpy() ** 2) for name in SHAPES))
    assert length == pytest.approx(0.25, rel=1e-2)


def test_fixed_draws():
    books = LedgerAccountant(config(SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE, None))
    grid = LocalGrid(app(), range(1, 41))
    run(private(books, selection="fixed"), grid, 4)
    assert [len(asked) for asked in grid.asked if asked] == [8] * 4
    assert len({tuple(sorted(asked)) for asked in grid.asked if asked}) > 1
    assert books.num_releases == 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: FedVeilStrategy(Mean(), on_mean=gaussian(multiplier=1.0), population=4, cohort=2), "no bound"),
        (lambda: FedVeilStrategy(Mean(), on_upload=clip(norm=1.0), on_mean=gaussian(multiplier=1.0)), "cohort"),
        (lambda: FedVeilStrategy(Mean(), population=4), "one of the two is missing"),
        (lambda: FedVeilStrategy(Mean(), population=4, cohort=5), "cohort"),
        (lambda: FedVeilStrategy(Krum(2), population=9, cohort=3), "declared_f"),
        (lambda: FedVeilStrategy(Median(), weights="examples"), "weights"),
        (lambda: FedVeilStrategy(Mean(), on_upload=ClipEach(1.0)), "round loop"),
        (lambda: FedVeilStrategy(Mean(), selection="random"), "selection"),
        (lambda: FedVeilStrategy(Mean(), accountant=LedgerAccountant(config(SamplingMethod.POISSON))), "mechanism"),
        (lambda: private(LedgerAccountant(config(SamplingMethod.POISSON)), seed=1), "seed"),
        (lambda: private(LedgerAccountant(config(SamplingMethod.POISSON)), population=50), "population"),
        (lambda: private(LedgerAccountant(config(SamplingMethod.POISSON)), selection="fixed"), "draws"),
        (lambda: FedVeilStrategy(Adaptive(byzantine=1), on_upload=clip(norm=1.0), on_mean=gaussian(multiplier=1.0)), "one rule"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused_when_built(build, words):
    with pytest.raises(Refused, match=words):
        build()


def test_the_draw_that_a_claim_counts_on_is_of_the_whole_population():
    counted = PrivacyConfig(1e-5, 100, NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT, 8.0)
    strategy = FedVeilStrategy(
        Mean(), on_upload=clip(norm=1.0), on_mean=gaussian(multiplier=1.0), population=100, cohort=20,
        accountant=LedgerAccountant(counted), **options(),
    )  # fmt: skip
    rng, nodes = np.random.default_rng(0), list(range(1000, 1010))
    drawn = [strategy._drawn(nodes, rng) for _ in range(500)]
    # Ten of the hundred are there: two a round come, and not all ten. Deviation of the mean 0.055; five of them.
    assert np.mean([len(found) for found in drawn]) == pytest.approx(2.0, abs=0.28)
    assert {node for found in drawn for node in found} == set(nodes)
