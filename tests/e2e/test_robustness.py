"""Attackers and controllers on the command line: what is recorded, what is reported, what is refused."""

import orjson
import pytest
from tests.e2e.test_command_line import good, refused

TOY = ("data=breast_cancer", "population=8", "cohort=8", "model=logistic", "rounds=6", "-q")


def test_an_attack_is_recorded_reported_and_resumed(tmp_path):
    attack = ("attack=ipm", "attack.factor=0.5", "attack.share=0.25", "attack.onset=4", "client_momentum=0.5")
    good("run", *TOY, *attack, "aggregate=adaptive", "aggregate.window=2", "out=a", cwd=tmp_path)
    summary = orjson.loads((tmp_path / "a" / "summary.json").read_bytes())
    told = summary["attack"]
    assert (told["name"], told["factor"], told["onset"], told["omniscient"]) == ("ipm", 0.5, 4, True)
    assert len(told["clients"]) == 2 and summary["excluded"] == 0
    events = [orjson.loads(x) for x in (tmp_path / "a" / "events.jsonl").read_bytes().splitlines()]
    assert all(e["detector"]["rule"] in ("mean", "centered_clipping") and e["detector"]["why"] for e in events)
    page = (tmp_path / "a" / "report.html").read_text("utf-8")
    assert "Attack score" in page and "centered_clipping" in page and "ipm" in page


@pytest.mark.parametrize("kind", ["nan", "inf", "wrong_shape", "silent"])
def test_what_no_server_can_use_is_named_on_the_command_line_and_resumed(tmp_path, kind):
    """`inf` and `nan` are words there, not numbers."""
    good("run", *TOY, "attack=malformed", f"attack.kind={kind}", "attack.share=0.25", "out=a", cwd=tmp_path)
    config = tmp_path / "a" / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 6", "rounds: 7"))
    good("resume", "a", "-q", cwd=tmp_path)
    summary = orjson.loads((tmp_path / "a" / "summary.json").read_bytes())
    assert summary["attack"]["kind"] == kind and summary["excluded"] == 2 * 7 and summary["rounds"] == 7


def test_a_private_run_says_whom_its_statement_speaks_of(tmp_path):
    good("run", *TOY, "method=dp_fedavg_local", "sigma=1", "attack=sign_flip", "out=a", cwd=tmp_path)
    assert "speak of honest clients" in (tmp_path / "a" / "statement.md").read_text()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("attack=alien",), "attack: 'alien' is unknown; did you mean 'alie'"),
        (("attack=alie", "attack.factor=2"), "attack.factor: there is no such setting"),
        (("attack.share=0.5",), "attack.share: there is no such setting"),
        (("attack=zero", "attack.share=0.01"), "attack.share: 0.01 of 20 clients is nobody"),
        (("attack=zero", "attack.share=2"), "attack.share: 2.0 is not a share of the clients"),
        (
            ("attack=zero", "attack.share=0.2", "method=ddp_fedavg", "transport=masks", "sigma=1"),
            "attack: the clients of ddp_fedavg share out the noise",
        ),
        (("attack=zero", "attack.onset=0"), "attack.onset: 0 is not a positive number"),
        (
            ("attack=backdoor", "attack.size=8"),
            "attack.size: a trigger of 8 covers whole rows of inputs of shape (1, 8, 8)",
        ),
        (("attack=malformed", "attack.kind=loud"), "attack.kind: 'loud' is unknown"),
        (("attack=backdoor", "attack.target=10"), "attack.target: there is no class 10"),
        (("aggregate=source",), "declared_f"),
        (("method=scaffold", "client_momentum=0.9"), "client_momentum: there is no such setting"),
        (("client_momentum=1",), "client_momentum: 1.0 is not a fraction"),
    ],
)
def test_mistakes_are_refused_in_words(tmp_path, settings, words):
    assert words in refused("run", "rounds=1", *settings, cwd=tmp_path)
