"""The ServerApp over nodes that read their own files."""

import fcntl
import threading

import numpy as np
import orjson
import pytest
from tests.flower.loopback import Loopback
from tests.support import require

require("flwr")

from flwr.app import Message  # noqa: E402

from fedveil.core.errors import Refused  # noqa: E402
from fedveil.runtime.flower.client_app import app  # noqa: E402
from fedveil.runtime.flower.server_app import deploy  # noqa: E402

SETTINGS = """
# a table with the same columns everywhere
data=csv
data.label=y
data.labels=[no,yes]
data.gaps=[]
data.bounds={a: [-3, 3], b: [-3, 3]}
model=logistic
rounds=8
lr=8
steps=5
"""


def table(path, seed, rows=40, columns="a,b,y"):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    lines = [f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}" for a, b in x]
    path.write_text("\n".join([columns, *lines]) + "\n")
    return path


def sites(tmp_path, count=3, **given):
    configs = [
        {"number": k, "site": f"site{k}", "data": str(table(tmp_path / f"{k}.csv", k, 40 + k))} for k in range(count)
    ]
    return Loopback(app, configs, **given)


def settings(tmp_path, *more):
    (tmp_path / "settings.txt").write_text(SETTINGS + "\n".join(more))
    return {"settings": str(tmp_path / "settings.txt"), "folder": str(tmp_path / "run"), "clients": 3, "wait": 1}


def test_sites_train_on_files_that_the_server_never_sees(tmp_path):
    grid = sites(tmp_path)
    test = table(tmp_path / "test.csv", 9, 200)
    folder = deploy(grid, settings(tmp_path, f"data.test={test}", "method=scaffold"))
    summary = orjson.loads(folder.summary.read_bytes())
    assert summary["rounds"] == 8 and summary["accuracy"] > 0.9 and summary["population"] == 3
    assert orjson.loads(folder.clients.read_bytes())["names"] == ["site0", "site1", "site2"]
    grid.configs = grid.configs[:0]
    again = deploy(grid, settings(tmp_path))  # it has ended: nothing runs again
    assert orjson.loads(again.summary.read_bytes())["model_hash"] == summary["model_hash"]


def test_without_a_test_set_nothing_is_said_about_accuracy(tmp_path):
    summary = orjson.loads(deploy(sites(tmp_path), settings(tmp_path)).summary.read_bytes())
    assert summary["accuracy"] is None and summary["loss"] is None


def test_noise_from_a_known_seed_is_refused_between_real_sites(tmp_path):
    with pytest.raises(Refused, match="privacy.rng=secure"):
        deploy(sites(tmp_path), settings(tmp_path, "method=dp_fedavg_local", "clip_norm=1", "sigma=1"))
    private = ("method=dp_fedavg_local", "clip_norm=1", "sigma=1", "privacy.rng=secure")
    config = settings(tmp_path, *private) | {"folder": str(tmp_path / "other")}
    assert orjson.loads(deploy(sites(tmp_path), config).summary.read_bytes())["rounds"] == 8


def test_two_servers_are_refused_between_real_sites(tmp_path):
    require("tenseal")
    words = ("method=apa_fl", "clip_norm=1", "sigma=1", "privacy.rng=secure", "aggregate=mean")
    with pytest.raises(Refused, match="use masks between real sites, and duo in a simulation"):
        deploy(sites(tmp_path), settings(tmp_path, *words))


def test_sites_whose_columns_differ_are_refused(tmp_path):
    grid = sites(tmp_path)
    table(tmp_path / "1.csv", 1, columns="a,c,y")
    with pytest.raises(Refused, match=r"2 of 3 clients|columns"):
        deploy(grid, settings(tmp_path))


def test_a_node_is_the_client_that_it_is_registered_as(tmp_path):
    class Info:
        def __init__(self, node_id, name):
            self.node_id, self.name = node_id, name

    names = ["north", "south", "west"]
    grid = sites(tmp_path)
    grid.get_nodes = lambda: [Info(100 + k, name) for k, name in enumerate(names)]
    run = settings(tmp_path) | {"sites": "north,south,west"}
    assert orjson.loads(deploy(grid, run).summary.read_bytes())["rounds"] == 8
    names[1] = "west"  # registered as another than the one that it says it is
    with pytest.raises(Refused, match="2 of 3 clients"):
        deploy(grid, run | {"folder": str(tmp_path / "other")})


def test_a_site_that_cannot_read_its_file_is_heard(tmp_path):
    grid = sites(tmp_path)
    (tmp_path / "1.csv").unlink()
    with pytest.raises(Refused, match=r"2 of 3 clients .* a node says: .*1\.csv"):
        deploy(grid, settings(tmp_path))


PRIVATE = ("method=dp_fedavg_local", "clip_norm=1", "sigma=2", "privacy.rng=secure", "runtime.timeout=5")


def spent(place):
    from fedveil.privacy.claims import Accounts
    from fedveil.privacy.ledger import Ledger

    accounts = Accounts.replay(Ledger.replay(place / "releases.jsonl").entries, delta=1e-5, local=True)
    return accounts.spent("server", "record"), len(Ledger.replay(place / "releases.jsonl").entries)


def test_a_site_keeps_its_own_budget_whatever_the_server_asks_for(tmp_path):
    grid = sites(tmp_path)
    config = settings(tmp_path, *PRIVATE)
    free = deploy(grid, config)
    whole = orjson.loads(free.summary.read_bytes())["epsilon"]["epsilon"]
    own = tmp_path / "own"
    grid.contexts[101].node_config |= {"epsilon": whole * 0.6, "state": str(own)}
    deploy(grid, config | {"folder": str(tmp_path / "second")})
    events = orjson.loads(b"[" + b",".join((tmp_path / "second/events.jsonl").read_bytes().splitlines()) + b"]")
    out = [[x["client"] for x in event.get("excluded") or []] for event in events]
    cost, rounds = spent(own)
    assert out == [[]] * rounds + [[1]] * (8 - rounds) and 0 < rounds < 8, out
    assert cost <= whole * 0.6 and "budget" in events[-1]["excluded"][0]["why"]
    # Another run begins with what is left: nothing.
    deploy(grid, config | {"folder": str(tmp_path / "third")})
    assert spent(own) == (cost, rounds)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (("method=fedavg",), "no mechanism of its own"),
        (("method=dp_fedavg_central", *PRIVATE[1:]), "no mechanism of its own"),
    ],
)
def test_a_site_with_a_budget_sends_nothing_without_noise(tmp_path, lines, why):
    grid = sites(tmp_path)
    for context in grid.contexts.values():
        context.node_config |= {"epsilon": 1000.0, "state": str(tmp_path / "own")}
    folder = deploy(grid, settings(tmp_path, *lines, "rounds=1"))
    event = orjson.loads(folder.events.read_bytes().splitlines()[0])
    assert why in str(event), event
    assert not (tmp_path / "own/releases.jsonl").exists()


def orders(grid, kind="train"):
    return [message for what, message, _ in grid.seen if what == kind]


def test_a_site_with_a_budget_tells_nothing_that_it_would_have_to_learn_from_its_file(tmp_path):
    grid = sites(tmp_path)
    grid.contexts[101].node_config |= {"epsilon": 8.0, "state": str(tmp_path / "own")}
    config = settings(tmp_path, *PRIVATE, "data.labels=null")
    with pytest.raises(Refused, match=r"2 of 3 clients .*data\.labels"):
        deploy(grid, config)


def test_a_site_reads_its_own_file_and_none_that_a_server_names(tmp_path):
    grid = sites(tmp_path)
    del grid.contexts[101].node_config["data"]
    with pytest.raises(Refused, match=r"2 of 3 clients .*site\.toml: data is missing"):
        deploy(grid, settings(tmp_path, f"data.path={tmp_path / '0.csv'}"))


def altered(message, context, **change):
    """The same order with other settings, as a server could send it; the reason of the error that comes back."""
    from dataclasses import replace

    from fedveil.runtime.flower.messages import Order, decode, encode

    order, state = decode(Order, message.content)
    found = orjson.loads(order.settings)
    for name, value in change.items():
        found["config"].update(value) if name == "config" else found.update({name: value})
    again = Message(encode(replace(order, settings=orjson.dumps(found)), state), dst_node_id=1, message_type="train")
    with pytest.raises(Refused) as refusal:
        app(again, context)
    return str(refusal.value)


def test_a_site_refuses_seeded_noise_and_runs_without_its_own_data(tmp_path):
    grid = sites(tmp_path)
    deploy(grid, settings(tmp_path, *PRIVATE, "rounds=1"))
    order, context = orders(grid)[0], grid.contexts[100]
    privacy = orjson.loads(_settings(order))["config"]["privacy"]
    assert "noise from a seed" in altered(order, context, config={"privacy": privacy | {"rng": "seeded"}})
    assert "data of its own" in altered(order, context, task=None)


def _settings(message):
    from fedveil.runtime.flower.messages import Order, decode

    return decode(Order, message.content)[0].settings


def test_two_orders_at_once_are_charged_one_after_the_other(tmp_path):
    own = tmp_path / "own"
    grid = sites(tmp_path)
    grid.contexts[100].node_config |= {"epsilon": 1000.0, "state": str(own)}
    deploy(grid, settings(tmp_path, *PRIVATE, "rounds=1"))
    order = Message(orders(grid)[0].content, dst_node_id=100, message_type="train")
    replies = []
    with (own / "releases.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as an order of another run has it
        thread = threading.Thread(target=lambda: replies.append(app(order, grid.contexts[100])))
        thread.start()
        thread.join(1.0)
        assert spent(own)[1] == 1
        assert not replies
    thread.join(30)
    assert len(replies) == 1
    assert spent(own)[1] == 2
