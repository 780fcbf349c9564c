"""The documentation as a program: its fenced blocks, and how each kind of them is executed.

The words after a fence's language say what happens to it:

- ``bash``: every line is typed into a shell, ``fedveil`` in this process, so that torch is imported once.
- ``python``: runs by itself, as in a file of its own; with ``title="name.py"`` it is saved under that name instead,
  for the blocks after it, and so is a block of any other language with a title.
- ``output``: what the block before it printed; compared line by line, up to a line ``...``.
- ``no-run``: needs Docker, several hosts or hours; a reason follows, as in ``no-run="needs a second host"``.
- ``slow``: runs with the slow tests.
- ``exits=1``: the last command ends with this code.
- ``needs=audit``: a command or method of that name must be there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedveil.cli import app, main
from fedveil.runtime.config import options

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=ticks)$", re.M | re.S)
MARKS = {"no-run", "slow", "output", "needs", "title", "exits"}
RUN = {"bash", "python"}
SHOWN = {"text", "mermaid", "yaml", "json", "toml", "markdown", "html", "csv", "dockerfile", "ini"}
ENDED = "..."


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its marks and where it stands."""

    language: str
    marks: dict[str, str]
    body: str
    line: int

    @property
    def runs(self) -> bool:
        return self.language in RUN and "no-run" not in self.marks and "output" not in self.marks


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order; a fence that says nothing about itself is refused."""
    text, found = page.read_text(), []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        language, _, rest = match["info"].strip().partition(" ")
        marks = {}
        for word in shlex.split(rest):
            name, _, value = word.partition("=")
            marks[name] = value
        where = f"{page.relative_to(ROOT)}:{line}"
        assert language in RUN | SHOWN, f"{where}: a block needs a language ({language!r} is none that is known)"
        assert set(marks) <= MARKS, f"{where}: unknown marks {sorted(set(marks) - MARKS)}; there are {sorted(MARKS)}"
        found.append(Block(language, marks, match["body"], line))
    assert text.count("\n```") + text.startswith("```") == 2 * len(found), f"{page}: a fence is open or indented"
    loose = re.search(r"^ {4,}(?:\$ )?(?:fedveil|python|pip|make|docker) .*", FENCE.sub("", text), re.M)
    assert loose is None, f"{page}: a command outside a fence is never run: {loose and loose[0].strip()}"
    return found


def missing(block: Block) -> str | None:
    """The command or method that the block needs and that is not there."""
    need = block.marks.get("needs")
    commands = {c.name or c.callback.__name__ for c in app.registered_commands} | {
        g.name for g in app.registered_groups
    }
    return None if need is None or need in commands | set(options("method")) else need


def run_page(page: Path, folder: Path, *, slow: bool = False) -> list[str | None]:
    """Execute a page's blocks in a folder; what was printed before each ``output`` (None: it could not run here)."""
    printed: list[str | None] = []
    last: str | None = None
    before = set(sys.modules)
    try:
        for block in blocks(page):
            where = f"{page.relative_to(ROOT)}:{block.line}"
            if "title" in block.marks:
                (folder / block.marks["title"]).write_text(block.body)
            elif "output" in block.marks:
                printed.append(last)
            elif missing(block) is not None or ("slow" in block.marks and not slow):
                last = None
            elif block.runs:
                try:
                    expected = int(block.marks.get("exits", 0))
                    last = _bash(block.body, expected) if block.language == "bash" else _python(block.body, where)
                except (SystemExit, Exception) as problem:
                    raise AssertionError(f"{where}: {type(problem).__name__}: {problem}\n{block.body}") from problem
    finally:
        for name in set(sys.modules) - before:  # modules that the page wrote itself
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
    return printed


def commands(body: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments and what ``&&`` joins apart."""
    lines = re.sub(r"\\\n\s*", " ", body).splitlines()
    bare = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in lines]
    return [part.strip() for line in bare if line for part in line.split(" && ")]


def _bash(body: str, expected: int) -> str:
    *first, last = commands(body)
    return "".join([_command(command, 0) for command in first] + [_command(last, expected)])


def _command(command: str, expected: int) -> str:
    words = shlex.split(command)
    if words[0] == "fedveil" and not set(words) & {"|", ">", ">>", "&", ";"}:
        return _fedveil(words, expected)
    if words[0] == "python" and words[1].endswith(".py"):
        return _printed(lambda: runpy.run_path(words[1], run_name="__main__"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == expected, f"{command}\n{done.stderr}"
    return done.stdout


def _fedveil(words: list[str], expected: int) -> str:
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as err:
        patch.setattr(sys, "argv", words)

        def call() -> None:
            code = None
            try:
                main()
            except SystemExit as left:
                code = left.code
            assert (code or 0) == expected, f"{shlex.join(words)}: {code}\n{err.getvalue()}"

        return _printed(call)


def _python(body: str, where: str) -> str:
    return _printed(lambda: exec(compile(body, where, "exec"), {"__name__": "__main__"}))


def _printed(call: object) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        call()  # type: ignore[operator]
    return out.getvalue()


def shortened(printed: str, shown: str) -> str:
    """What was printed as far as the page shows it: a text that ends in ``...`` shows the first part."""
    lines = [line.rstrip() for line in printed.strip().splitlines()]
    if not shown.rstrip().endswith(ENDED):
        return "\n".join(lines) + "\n"
    table = next((i for i, line in enumerate(lines) if i > 2 and not line and lines[i - 1].startswith("|")), len(lines))
    count = table if shown.lstrip().startswith("# Privacy") else len(shown.rstrip().splitlines()) - 1
    return "\n".join([*lines[:count], ENDED]) + "\n"


def write_outputs(page: Path, printed: list[str | None]) -> None:
    """Put what was printed in the place of what the page shows (``FEDVEIL_DOCS=write``)."""
    left = iter(printed)

    def fence(found: re.Match[str]) -> str:
        if "output" not in found["info"].split():
            return found[0]
        text = next(left)
        return found[0] if text is None else f"```{found['info']}\n{shortened(text, found['body'])}```"

    page.write_text(FENCE.sub(fence, page.read_text()))
