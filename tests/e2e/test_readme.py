"""The Python of the README and of the documentation runs as written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_python_block_of_the_readme_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) >= 2
    for block in blocks:
        done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    assert "| server | client |" in done.stdout
    assert "proved" in done.stdout


@pytest.mark.parametrize(
    "page", [p for p in sorted((ROOT / "docs").rglob("*.md")) if "```python" in p.read_text()], ids=lambda p: p.stem
)
def test_every_python_block_of_the_documentation_runs(tmp_path, page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
