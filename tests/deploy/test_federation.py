"""A federation over TLS with node authentication, on loopback, as `fedveil deploy init` sets it up."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import orjson
import pytest
import torch
from safetensors.torch import load_file
from tests.deploy.machines import COMMAND, Machines, examples, listening, until
from tests.support import require

import fedveil
from fedveil.core.federation import Examples

require("flwr")

SETTINGS = """
data=npz
data.classes=2
data.test={test}
model=logistic
lr=1
steps=5
privacy.rng=secure
runtime.timeout=120
"""


def federation(tmp_path, *more, sites=3, roles=()):
    examples(tmp_path / "test.npz", 99, 400)
    text = SETTINGS.format(test=tmp_path / "test.npz") + "\n".join(more) + "\n"
    return Machines(tmp_path, sites, text, roles)


@pytest.mark.parametrize(("sites", "rounds"), [(2, 1), pytest.param(3, 3, marks=pytest.mark.slow)])
def test_registered_sites_train_and_nobody_else_gets_in(tmp_path, sites, rounds):
    with federation(tmp_path, "method=scaffold", f"rounds={rounds}", sites=sites) as machines:
        machines.superlink()
        machines.register()
        rogue = machines.folder / "sites/rogue"
        shutil.copytree(machines.folder / "sites/site-1", rogue)
        machines.place("rogue")
        done = machines.call([*COMMAND, "deploy", "key", str(rogue)])
        assert done.returncode == 0, done.stderr
        for name in [*machines.names, "rogue"]:
            machines.site(name)
        machines.run()
        until(machines.finished, 250, "the run ends")
        summary = machines.summary()
        assert summary["rounds"] == rounds and summary["accuracy"] > 0.8 and summary["population"] == sites
        assert all(event["missing"] in (None, 0) for event in machines.events())
        assert (machines.run_folder / "report.html").is_file()
        until(lambda: not machines.processes("rogue"), 60, "the stranger gives up, and leaves nothing")
        assert "SuperNode ID" not in machines.said("rogue")
        nodes = machines.call([str(machines.folder / "superlink/flwr.sh"), "supernode", "ls", "--format", "json"])
        assert len(orjson.loads(nodes.stdout[nodes.stdout.index("{") :])["nodes"]) == sites, nodes.stdout
        left = machines.stop()
    assert not left
    assert not any(listening(port) for port in (machines.port, *machines.ports.values()))


def received(machines, name):
    """How many orders to train have reached a site."""
    return machines.said(name).count("Receiving: train")


def started(machines):
    machines.superlink()
    machines.register()
    for name in machines.names:
        machines.site(name)
    machines.run()


def charges(machines):
    """The rounds of the ledger's entries, and those marked as interrupted."""
    lines = [orjson.loads(line) for line in (machines.run_folder / "ledger.jsonl").read_bytes().splitlines()]
    charged = [line["round"] for line in lines if "releases" in line]
    return charged, [line["round"] for line in lines if "releases" not in line]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_site_killed_in_mid_round_stops_nobody_and_may_come_back(tmp_path):
    with federation(tmp_path, "method=scaffold", "rounds=9", "runtime.timeout=40") as machines:
        started(machines)
        until(lambda: received(machines, "site-3") == 2 or machines.finished(), 400, "the second round reaches site 3")
        machines.kill("site-3")
        until(lambda: len(machines.events()) >= 3, 400, "training goes on")
        machines.log("site-3").rename(tmp_path / "site-3.first.log")
        machines.site("site-3")
        until(machines.finished, 400, "the run ends")
        events = machines.events()
        assert [event["round"] for event in events] == list(range(1, 10))
        assert not any(event.get("aborted") for event in events)
        assert events[0].get("excluded") is None
        out = {e["round"]: [x["client"] for x in e.get("excluded") or []] for e in events}
        assert out[2] == [2], out  # killed with the order in hand
        assert out[9] == [], out  # back again
        assert machines.summary()["accuracy"] > 0.85
        assert not any(event.get("forgot") for event in events)  # its control variate outlived the process


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_server_goes_on_from_its_checkpoint_and_charges_every_release_once(tmp_path):
    private = ("method=dp_fedavg_local", "clip_norm=1", "sigma=2", "rounds=5")
    with federation(tmp_path, *private) as machines:
        started(machines)
        until(lambda: received(machines, "site-1") == 2 or machines.finished(), 400, "the second round reaches site 1")
        machines.started["superlink"].kill()
        machines.started.pop("superlink").wait(10)
        until(lambda: not machines.processes("superlink"), 60, "the ServerApp ends with it")
        assert charges(machines)[0] == [1, 2]
        before = machines.events()
        machines.superlink()
        machines.run()
        until(lambda: received(machines, "site-1") >= 4, 300, "round 3 after the resumption")
        server = machines.call(["pgrep", "-f", f"flwr-serverapp.*:{machines.port} "]).stdout.split()
        for number in set(map(int, server)) & set(machines.processes("superlink")):
            os.kill(number, signal.SIGKILL)
        until(lambda: not machines.alive("run"), 60, "the run's command notices")
        machines.run()
        until(machines.finished, 300, "the run ends")
        charged, interrupted = charges(machines)
        assert charged == [1, 2, 2, 3, 3, 4, 5] and interrupted == [2, 3]
        events = machines.events()
        assert [event["round"] for event in events] == [1, 2, 3, 4, 5] and events[0] == before[0]
        # Nothing was released that was not charged: every order that reached a site has its line.
        for name in machines.names:
            assert 5 <= received(machines, name) <= len(charged)
        claims = {row["observer"]: row["epsilon"] for row in statement(machines)["rows"] if row["unit"] == "record"}
        assert claims["server"] == pytest.approx(cost(len(charged)), rel=1e-6)


def statement(machines):
    return orjson.loads((machines.run_folder / "statement.json").read_bytes())


def cost(rounds):
    """Epsilon of so many rounds of five steps each, batches of 32 of 120."""
    from fedveil.privacy.accountants import epsilon
    from fedveil.privacy.events import Event, Poisson

    return epsilon(Event("gaussian", 2.0, Poisson(32 / 120), 5 * rounds), 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_masks_bring_the_sum_of_those_who_stayed_when_one_is_killed_at_the_mask_stage(tmp_path):
    masks = ("method=fedavg", "rounds=1", "transport=masks", "transport.max_dropout=0.3", "data.test=null")
    with federation(tmp_path, *masks, sites=4) as machines:
        started(machines)
        until(lambda: received(machines, "site-4") == 1 or machines.finished(), 400, "the mask stage reaches site 4")
        machines.kill("site-4")
        until(machines.finished, 300, "the run ends")
        (event,) = machines.events()
        assert event["missing"] == 1 and event["excluded"][0]["client"] == 3, event
        assert event["excluded"][0]["why"].startswith("mask: "), event
        hidden = load_file(machines.run_folder / "model.safetensors")
        together = of_three(tmp_path)
        for name, value in together.items():
            assert torch.allclose(hidden[name], value, atol=1e-5), name
            assert not torch.allclose(value, torch.zeros_like(value))


@pytest.mark.slow
def test_nothing_outlives_a_process_that_was_killed(tmp_path):
    with federation(tmp_path) as machines:
        machines.site("site-1")  # nobody answers it: it and its helpers try again and again
        machines.superlink()
        for part in ("superlink", "site-1"):
            until(lambda part=part: len(machines.processes(part)) >= 2, 60, "the helpers are there")
            machines.started[part].kill()
            machines.started[part].wait(10)
            until(lambda part=part: not machines.processes(part), 15, "the helpers are gone")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_shuffler_is_a_party_of_its_own(tmp_path):
    weights = ("method=ldp_fl", "rounds=2", "transport=shuffle", "privacy.epsilon=1")
    with federation(tmp_path, *weights, roles=("shuffler",)) as machines:
        started(machines)
        until(machines.finished, 400, "the run ends")
        assert machines.summary()["rounds"] == 2
        assert all(event["missing"] in (None, 0) and not event.get("aborted") for event in machines.events())
        assert machines.said("shuffler").count("Receiving: query.shuffle") == 2
        assert "query.shuffle" not in machines.said("site-1") and received(machines, "site-1") == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_network_is_needed_beyond_the_federation():
    """The quick test above, in a network that has nothing but loopback."""
    alone = "ip link set lo up && ! (exec 3<>/dev/tcp/1.1.1.1/443) 2>/dev/null"
    if subprocess.run(["unshare", "-rn", "bash", "-c", alone], check=False).returncode:
        pytest.skip("no network namespaces here")
    test = f"{__file__}::test_registered_sites_train_and_nobody_else_gets_in"
    command = f"{alone} && {sys.executable} -m pytest -q -n 0 -p no:cacheprovider '{test}'"
    done = subprocess.run(["unshare", "-rn", "bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("."), done.stdout[-3000:]


def of_three(tmp_path):
    """The same round in this process, of the three who stayed: the plain mean of their moves."""
    parts = [np.load(tmp_path / f"site-{k}.npz") for k in (1, 2, 3)]
    settings = {"method": "fedavg", "model": "logistic", "lr": 1.0, "steps": 5, "rounds": 1, "engine": "sequential"}
    result = fedveil.run(data=Three(parts), out=tmp_path / "inline", **settings)
    return load_file(result.folder.model)


class Three:
    """Everything that three sites have, and no test set."""

    name, input_shape, classes, private_statistics, population = "npz", (5,), 2, None, 3

    def __init__(self, parts):
        self.parts = [Examples(torch.from_numpy(p["x"]), torch.from_numpy(p["y"])) for p in parts]
        self.sizes = np.array([len(p) for p in self.parts])
        self.test = self.holdout(0)

    def train(self, client):
        return self.parts[client]

    def holdout(self, client):
        return Examples(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))

    def client_names(self):
        return None

    def label_counts(self):
        return None

    def facts(self):
        return {}
