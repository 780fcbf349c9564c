"""The example of an existing Flower app, as it stands in examples/, over a grid in this process."""

import importlib.util
from pathlib import Path

from flwr.app import Context, RecordDict
from tests.flower.grid import LocalGrid

EXAMPLE = Path(__file__).parents[2] / "examples/flower_app.py"


def test_the_example_trains_privately(capsys):
    spec = importlib.util.spec_from_file_location("flower_app", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    grid = LocalGrid(example.client_app, range(example.CLIENTS))
    example.server_app(grid, Context(1, 1, {}, RecordDict(), {}))
    words = capsys.readouterr().out
    # 0.845 on average, with deviation 0.04.
    assert float(words.split("accuracy ")[1].split()[0]) > 0.62, words
    spent = {example.mod.spent(context) for context in grid.contexts.values()}
    # Three releases of multiplier 1, by hand: the least of 1.5 a + ln(1e5)/(a - 1) is 9.8; tighter conversions give less.
    assert len(spent) == 1 and 8 < spent.pop() <= 9.9
