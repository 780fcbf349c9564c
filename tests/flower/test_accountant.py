import pytest
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

from fedveil.core.errors import Refused
from fedveil.flower import LedgerAccountant

PLAIN = PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, 8.0)
POISSON = PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON, 8.0)
DRAWN = PrivacyConfig(1e-5, 100, NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT, 8.0)


def event(z=1.0, size=10):
    return GaussianPrivacyEvent(z, size, 100)


@pytest.mark.parametrize(
    ("config", "z", "count", "size"),
    [(PLAIN, 1.0, 1, 10), (PLAIN, 4.0, 150, 30), (POISSON, 0.7, 20, 10), (POISSON, 2.0, 100, 40)],
)
def test_agrees_with_flowers_own_accountant(config, z, count, size):
    ours, theirs = LedgerAccountant(config, accountant="rdp"), RdpAccountant(config)
    for accountant in (ours, theirs):
        accountant.compose(event(z, size), count)
    # Same theorem; the choice of orders differs.
    assert ours.get_epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=0.02)
    assert ours.num_releases == theirs.num_releases == count


def test_the_tight_accountant_and_poisson_draws():
    figures = {}
    for name, config in (("none", PLAIN), ("poisson", POISSON)):
        for accountant in ("rdp", "pld"):
            books = LedgerAccountant(config, accountant=accountant)
            books.compose(event(1.0), 100)
            figures[name, accountant] = books.get_epsilon(1e-5)
    # Known figures for z = 1, 10 of 100, 100 rounds, delta 1e-5: 96 without amplification, 7.9 (rdp) and 7.05 (pld).
    assert figures["none", "rdp"] == pytest.approx(96.1, abs=0.5)
    assert figures["poisson", "rdp"] == pytest.approx(7.90, abs=0.05)
    assert figures["poisson", "pld"] == pytest.approx(7.05, abs=0.05)


def test_replacing_a_client_moves_the_sum_by_twice_the_clip():
    half, whole = LedgerAccountant(DRAWN, accountant="rdp"), LedgerAccountant(PLAIN, accountant="rdp")
    half.compose(event(2.0, 100))
    whole.compose(event(1.0, 100))
    assert half.get_epsilon(1e-5) == pytest.approx(whole.get_epsilon(1e-5))


def test_delta_is_the_inverse_of_epsilon():
    books = LedgerAccountant(POISSON, accountant="rdp")
    assert books.get_delta(1.0) == 0
    books.compose(event(2.0), 10)
    spent = books.get_epsilon(1e-6)
    assert books.get_delta(spent) == pytest.approx(1e-6, rel=0.05)
    assert books.get_epsilon(books.get_delta(spent)) <= spent
    assert books.get_delta(0.0) <= 1.0


def test_a_budget_is_looked_at_before_and_never_charged_by_looking():
    books = LedgerAccountant(POISSON, accountant="rdp")
    while not books.would_exceed(event()):
        books.compose(event())
    spent = books.get_privacy_spent()
    assert spent.epsilon <= 8
    assert spent.num_releases == books.num_releases > 20
    assert books.would_exceed(event()) and books.num_releases == spent.num_releases
    assert not books.would_exceed(event(), max_epsilon=100)


def test_the_journal_outlives_the_process(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = LedgerAccountant(PLAIN, journal=path)
    first.compose(event(3.0), 4)
    first.compose(event(2.0))
    again = LedgerAccountant(PLAIN, journal=path)
    assert again.get_epsilon(1e-5) == first.get_epsilon(1e-5) and again.num_releases == 5
    with pytest.raises(Refused, match="another configuration"):
        LedgerAccountant(POISSON, journal=path)
    path.write_bytes(path.read_bytes().replace(b"4", b"1", 1))
    with pytest.raises(Refused, match="damaged"):
        LedgerAccountant(PLAIN, journal=path)


def test_state_goes_through_json(tmp_path):
    import json

    books = LedgerAccountant(PLAIN)
    books.compose(event(2.0), 3)
    state = json.loads(json.dumps(books.state_dict()))
    other = LedgerAccountant(PLAIN)
    other.load_state_dict(state)
    assert other.get_epsilon(1e-5) == books.get_epsilon(1e-5)
    with pytest.raises(ValueError, match="another configuration"):
        LedgerAccountant(POISSON).load_state_dict(state)
    with pytest.raises(ValueError, match="another story"):
        LedgerAccountant(PLAIN, journal=tmp_path / "j").load_state_dict(state)
    with pytest.raises(ValueError, match="damaged"):
        other.load_state_dict(state | {"releases": [[{"unit": "client"}]]})


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda b: b.compose(GaussianPrivacyEvent(1.0, 10, 50)), "population_size"),
        (lambda b: b.compose(event(), 0), "count"),
        (lambda b: b.get_epsilon(2.0), "delta"),
        (lambda b: b.get_delta(-1.0), "epsilon"),
        (lambda b: b.would_exceed(event(), max_epsilon=-1.0), "max_epsilon"),
    ],
)
def test_mistakes_are_refused_in_words(call, word):
    with pytest.raises(ValueError, match=word):
        call(LedgerAccountant(PLAIN))


def test_flowers_own_strategy_takes_it():
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    books = LedgerAccountant(PLAIN)
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 10, accountant=books)
    assert strategy.privacy_spent().epsilon == 0
