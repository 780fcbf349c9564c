"""A federation over TLS with node authentication, on loopback, as `fedveil deploy init` sets it up."""

import shutil

import orjson
import pytest
from tests.deploy.machines import Machines, examples, free_port, listening, until
from tests.support import require

require("flwr")

SETTINGS = """
data=npz
data.classes=2
data.test={test}
model=logistic
lr=1
steps=5
privacy.rng=secure
runtime.timeout=20
"""


def federation(tmp_path, *more, sites=3):
    examples(tmp_path / "test.npz", 99, 400)
    text = SETTINGS.format(test=tmp_path / "test.npz") + "\n".join(more) + "\n"
    return Machines(tmp_path, sites, text)


def test_registered_sites_train_and_nobody_else_gets_in(tmp_path):
    with federation(tmp_path, "method=scaffold", "rounds=2") as machines:
        machines.superlink()
        machines.register()
        rogue = machines.folder / "sites/rogue"
        shutil.copytree(machines.folder / "sites/site-1", rogue)
        machines.place("rogue")
        done = machines.call([*machines_command(), "deploy", "key", str(rogue)])
        assert done.returncode == 0, done.stderr
        for name in [*machines.names, "rogue"]:
            machines.site(name)
        machines.run()
        until(machines.finished, 100, "two rounds")
        summary = machines.summary()
        assert summary["rounds"] == 2 and summary["accuracy"] > 0.8 and summary["population"] == 3
        assert all(event["missing"] in (None, 0) for event in machines.events())
        assert (machines.run_folder / "report.html").is_file()
        until(lambda: not machines.processes("rogue"), 20, "the stranger gives up")
        assert "SuperNode ID" not in machines.said("rogue")
        nodes = machines.call([str(machines.folder / "superlink/flwr.sh"), "supernode", "ls", "--format", "json"])
        assert len(orjson.loads(nodes.stdout[nodes.stdout.index("{") :])["nodes"]) == 3, nodes.stdout
        left = machines.stop()
    assert not left
    assert not any(listening(port) for port in (machines.port, *machines.ports.values()))


def machines_command():
    from tests.deploy.machines import COMMAND

    return COMMAND
