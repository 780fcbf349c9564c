"""Runs with canaries: what they may and may not change, and whether audits find what was spoilt."""

import json
import math
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from tests.support import blobs

import fedveil
from fedveil.core.errors import Refused
from fedveil.report.audit import audit_page, lines
from fedveil.runtime import inline
from fedveil.runtime.audit import audit

LOCAL = {"method": {"name": "dp_fedavg_local", "sigma": 4.9}}
"""ε = 3.7 to 4 for records towards the server, with the settings of :func:`run`."""
CENTRAL = {"method": {"name": "dp_fedavg_central", "sigma": 6.35}, "cohort": 20}
"""ε = 4 for clients towards the public."""


def run(out, kind, **settings):
    whole = {"data": {"name": "digits"}, "rounds": 30, "evaluate": {"every": 30}, "checkpoint": {"every": 30}}
    return fedveil.run(out=out, **(whole | {"audit": {"canaries": "auto"}} | kind | settings))


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """Two seeds of each method, honest, with half its noise, and with none."""
    found = {}
    for name, kind in (("local", LOCAL), ("central", CENTRAL)):
        for noise in (1.0, 0.5, 0.0):
            for seed in range(2):
                place = tmp_path_factory.mktemp("audits") / "run"
                run(place, kind, seed=seed, audit={"canaries": 5000, "noise": noise})
                found[name, noise, seed] = audit(place)
    return found


@pytest.mark.parametrize("name", ["local", "central"])
def test_audits_hold_for_honest_runs_and_notice_missing_noise(audited, name):
    """A few seeds of the study whose page is docs/results/audit.md."""
    honest, half, off = ([audited[name, noise, seed] for seed in range(2)] for noise in (1.0, 0.5, 0.0))
    assert all(3.6 < a.claim < 4.1 for a in (*honest, *half, *off)), "the ledger knows nothing of it"
    assert all(0 < a.bound < a.claim and a.verdict == "holds" for a in honest)
    assert all(a.strict <= a.claim for a in honest)
    assert all(a.bound > a.claim and a.verdict == "violated" and a.right == a.guesses >= 500 for a in off)
    assert np.mean([a.bound for a in half]) >= 1.4 * np.mean([a.bound for a in honest])
    unit = {"local": ("record", "server"), "central": ("client", "public")}[name]
    assert all((a.unit, a.observer) == unit for a in honest)


@pytest.mark.parametrize("kind", [LOCAL | {"method": LOCAL["method"] | {"sigma": 17.0}}, CENTRAL | {"method": CENTRAL["method"] | {"sigma": 20.5}}])  # fmt: skip
def test_a_small_claim_is_exceeded_with_a_quarter_of_the_noise(tmp_path, kind):
    run(tmp_path / "run", kind, audit={"canaries": 5000, "noise": 0.25})
    found = audit(tmp_path / "run")
    assert 0.9 < found.claim < 1.1
    assert found.bound > found.claim and found.verdict == "violated"


def test_scores_are_those_of_the_mechanism(audited):
    """In deviations of its noise: out N(0, 1), and in by what the noise allows; half the noise, half the width."""
    for name in ("local", "central"):
        h = [audited[name, noise, 0].histogram for noise in (1.0, 0.5)]
        spreads = []
        for one in h:
            middle = (np.array(one.edges[1:]) + np.array(one.edges[:-1])) / 2
            counts = np.array(one.outside)
            mean = (middle * counts).sum() / counts.sum()
            spreads.append(math.sqrt((counts * (middle - mean) ** 2).sum() / counts.sum()))
            assert abs(mean) < 0.15
        assert spreads[0] == pytest.approx(1.0, abs=0.06)
        assert spreads[1] == pytest.approx(0.5, abs=0.04)


def test_the_estimate_of_a_tight_claim_is_near_it(audited):
    found = audited["central", 1.0, 0]
    assert found.estimate == pytest.approx(found.claim, rel=0.15)
    assert found.cosine is not None and found.cosine < found.claim
    assert audited["central", 0.0, 0].cosine > 5, "canary clients' cosines see it as well"
    assert audited["local", 1.0, 0].cosine is None


def rows(folder):
    return [r["epsilon"] for r in json.loads((folder / "statement.json").read_text())["rows"]]


@pytest.mark.parametrize("kind", [LOCAL, CENTRAL])
def test_canaries_change_no_claim_and_no_size(tmp_path, kind):
    plain = run(tmp_path / "plain", kind, rounds=3, audit={"canaries": 0})
    with_them = run(tmp_path / "with", kind, rounds=3)
    assert rows(tmp_path / "plain") == rows(tmp_path / "with")
    assert not (tmp_path / "plain" / "canaries.json").exists()
    for name in ("clients", "bytes_up", "bytes_down", "steps"):
        assert [e[name] for e in plain.history] == [e[name] for e in with_them.history]
    assert any("5,000 canaries" in note for note in with_them.statement.notes)
    spoilt = run(tmp_path / "spoilt", kind, rounds=3, audit={"canaries": 100, "noise": 0.5})
    assert {r.status for r in spoilt.statement.rows} == {"none"}, "a run without its noise claims nothing"
    assert spoilt.summary["epsilon"] is None
    evidence = json.loads((tmp_path / "spoilt" / "canaries.json").read_text())
    assert [r["epsilon"] for r in evidence["claims"]] == rows(tmp_path / "plain")


@pytest.mark.parametrize("kind", [LOCAL, CENTRAL, {"method": {"name": "dp_scaffold", "algorithm_variant": 1, "sigma": 2.0}}])  # fmt: skip
def test_an_interrupted_audit_goes_on_as_if_nothing_had_happened(tmp_path, kind, monkeypatch):
    settings = {"rounds": 4, "checkpoint": {"every": 1}, "audit": {"canaries": 300}}
    run(tmp_path / "whole", kind, **settings)
    real, calls = inline._round, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(inline, "_round", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "part", kind, **settings)
    monkeypatch.setattr(inline, "_round", real)
    with pytest.raises(Refused, match="has not finished"):
        audit(tmp_path / "part")
    fedveil.resume(tmp_path / "part")
    files = [(tmp_path / which / "canaries.json").read_bytes() for which in ("whole", "part")]
    assert files[0] == files[1]


def test_every_engine_hears_the_same(tmp_path):
    scores = []
    for engine in ("fold", "vmap", "sequential"):
        place = tmp_path / engine
        run(place, LOCAL, rounds=2, engine=engine, dtype="float64", audit={"canaries": 400})
        scores.append(json.loads((place / "canaries.json").read_text())["scores"])
    assert np.allclose(scores[0], scores[1], atol=1e-6) and np.allclose(scores[0], scores[2], atol=1e-6)
    assert np.std(scores[0]) > 0.5


METHODS = {
    "dp_fedavg_local last_noise": {"name": "dp_fedavg_local", "algorithm_variant": "last_noise"},
    "dp_scaffold": {"name": "dp_scaffold", "algorithm_variant": 2},
    "dp_scaffold_stein final": {"name": "dp_scaffold_stein", "algorithm_variant": 3},
    "dp_fed_stein final": {"name": "dp_fed_stein", "algorithm_variant": 3},
    "momentum": {"name": "dp_fedavg_local", "client_momentum": 0.9},
    "adaptive clip": {"name": "dp_fedavg_central", "clipping": "adaptive"},
    "private control variates": {"name": "dp_fedavg_central", "drift": "scaffold"},
}


@pytest.mark.parametrize("name", METHODS)
def test_other_methods_are_seen_through_without_noise_as_well(tmp_path, name):
    """Everybody takes part in every round."""
    kind = {"method": METHODS[name] | {"sigma": 3.0}, "cohort": 20}
    run(tmp_path / "run", kind, rounds=5, audit={"canaries": 1000, "noise": 0.0})
    found = audit(tmp_path / "run", guesses=400)
    assert found.right >= 396, "some canaries that are in were never drawn"


@pytest.mark.parametrize("kind", [LOCAL, CENTRAL | {"transport": "masks"}])
def test_secret_noise_and_hidden_uploads_are_audited_too(tmp_path, kind):
    privacy = {"rng": "secure"}
    run(tmp_path / "run", kind, rounds=4, privacy=privacy, audit={"canaries": 1000, "noise": 0.0})
    assert audit(tmp_path / "run", guesses=200).right >= 195


def test_a_blind_audit_does_not_hold(tmp_path):
    """Shrinking in every step takes out what is not larger than the noise that should be there."""
    run(tmp_path / "run", {"method": {"name": "dp_fed_stein", "algorithm_variant": 2, "sigma": 4.9}}, rounds=12)
    assert fedveil.audit(tmp_path / "run").verdict == "holds"
    found = fedveil.audit(tmp_path / "run", power=True)
    assert found.powerless and found.verdict == "no power"
    assert "noise switched off looks no worse" in found.in_words
    assert json.loads((tmp_path / "run" / "audit.json").read_text())["verdict"] == "no power"


def test_too_few_guesses_have_no_power_and_say_so(tmp_path):
    run(tmp_path / "run", LOCAL, audit={"canaries": 60})
    found = audit(tmp_path / "run")
    assert found.guesses == 60 and found.verdict == "no power"
    assert "can show ε ≥ 2.9" in found.in_words


def test_models_of_ones_own_are_audited(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
    method = {"name": "dp_fedavg_local", "sigma": 6.0}
    settings = {"data": blobs(6, 40), "model": model, "audit": {"canaries": "auto"}, "rounds": 4, "cohort": 6}
    fedveil.run(out=tmp_path / "run", method=method, **settings)
    found = fedveil.audit(tmp_path / "run", power=True, data=settings["data"], model=model)
    assert found.data == "blobs" and found.switched_off > found.bound
    with pytest.raises(Refused, match="hand it in again"):
        fedveil.audit(tmp_path / "run", power=True)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"method": "fedavg"}, "claims nothing that could be audited"),
        ({"method": {"name": "ldp_fl"}, "privacy": {"epsilon": 1.0}}, "no canaries for the mechanism of ldp_fl"),
        (LOCAL | {"attack": "ipm"}, "set attack=none"),
        (CENTRAL | {"model": "logistic", "audit": {"canaries": 500}}, "give at most 384"),
        (LOCAL | {"audit": {"canaries": 1}}, "cannot be told from chance"),
        (LOCAL | {"audit": {"noise": 0.5}}, "set audit.canaries as well"),
        (LOCAL | {"audit": {"canaries": -1}}, r"audit\.canaries"),
        (CENTRAL | {"aggregate": "median"}, "use aggregate=mean"),
    ],
)
def test_what_cannot_be_audited_is_refused(tmp_path, kind, words):
    with pytest.raises(Refused, match=words):
        run(tmp_path / "run", kind, rounds=1)


def test_damaged_evidence_is_refused(tmp_path):
    run(tmp_path / "run", LOCAL, rounds=1, audit={"canaries": 100})
    place = tmp_path / "run" / "canaries.json"
    found = orjson.loads(place.read_bytes())
    place.write_bytes(orjson.dumps(found | {"scores": found["scores"][1:]}))
    with pytest.raises(Refused, match="damaged"):
        audit(tmp_path / "run")
    place.write_bytes(orjson.dumps(found | {"claims": []}))
    with pytest.raises(Refused, match="no claim to audit"):
        audit(tmp_path / "run")
    place.unlink()
    with pytest.raises(Refused, match="trained without canaries"):
        audit(Path(tmp_path / "run"))


def test_the_page_shows_every_number(audited):
    from tests.report.pages import Page

    for found in (audited["local", 1.0, 0], audited["central", 0.0, 1]):
        page = Page(audit_page(found).replace("<img", "<br"))
        assert len(page.figures()) == 2
        for name, value in lines(found):
            assert name in page.text and value in page.text
        assert ("false on purpose" in page.text) == (found.noise != 1)
        bars = {t["y"][0]: t["x"][0] for t in page.figures()[0]["data"]}
        assert bars["claim"] == pytest.approx(found.claim, rel=1e-4) and bars["lower bound"] == pytest.approx(
            found.bound, rel=1e-4
        )
        h = page.figures()[1]["data"]
        assert sum(h[0]["y"]) + sum(h[1]["y"]) == 5000
