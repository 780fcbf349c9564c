"""The notebooks run from the first cell to the last, and carry no outputs of somebody's machine."""

import contextlib
import io
import json

import pytest
from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook):
    return json.loads(notebook.read_text())["cells"]


def test_there_are_notebooks():
    assert {n.stem for n in NOTEBOOKS} >= {"quickstart", "privacy_budget"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_a_notebook_runs(tmp_path, monkeypatch, notebook):
    """All cells in one namespace, as a kernel would; what a cell ends with is computed like everything else."""
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "__main__"}
    printed = io.StringIO()
    for number, cell in enumerate(cells(notebook), 1):
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, space)
    assert "proved" in printed.getvalue()


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda n: n.stem)
def test_a_notebook_is_a_notebook_without_outputs_or_magics(notebook):
    whole = json.loads(notebook.read_text())
    assert (whole["nbformat"], whole["metadata"]["kernelspec"]["name"]) == (4, "python3")
    ids = [cell["id"] for cell in whole["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in whole["cells"]:
        assert cell["cell_type"] in {"code", "markdown"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            assert not any(line.startswith(("%", "!")) for line in cell["source"])
