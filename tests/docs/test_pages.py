"""Every block of the documentation runs as written, prints what the page says, and says it in both languages."""

import os
import re
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, ROOT, blocks, commands, missing, run_page, shortened, write_outputs

from fedveil.runtime.config import options

CHINESE = DOCS / "zh"
READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
PAGES = sorted(p for p in DOCS.rglob("*.md") if CHINESE not in p.parents)
METHODS = [name for name in options("method") if name != "custom"]


def named(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [*PAGES, READMES[0]], ids=named)
def test_every_block_runs_and_prints_what_the_page_shows(tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    printed = run_page(page, tmp_path)
    shown = [b.body for b in blocks(page) if "output" in b.marks]
    if os.environ.get("FEDVEIL_DOCS") == "write":
        for one in (page, CHINESE / page.relative_to(DOCS) if DOCS in page.parents else READMES[1]):
            if one.exists():
                write_outputs(one, printed)
        return
    found = [s if p is None else shortened(p, s) for p, s in zip(printed, shown, strict=True)]
    assert found == shown, "run again with FEDVEIL_DOCS=write if the page should say this"


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if any("slow" in b.marks for b in blocks(p))], ids=named)
def test_slow_blocks_run(tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run_page(page, tmp_path, slow=True)


@pytest.mark.parametrize("page", sorted(CHINESE.rglob("*.md")), ids=named)
def test_a_chinese_page_keeps_step_with_its_original(page):
    original = DOCS / page.relative_to(CHINESE)
    assert _code(page) == _code(original)
    assert _formulas(page) == _formulas(original)
    assert _headings(page) == _headings(original)
    assert _rows(page) == _rows(original)
    assert len(re.findall(r"[\u4e00-\u9fff]", page.read_text())) > 100


def test_the_readmes_give_the_same_commands():
    english, chinese = READMES
    assert _code(english) == _code(chinese)
    assert _headings(english) == _headings(chinese)
    assert _rows(english) == _rows(chinese)
    assert _pictures(english) == _pictures(chinese)
    assert any(commands(b.body) for b in blocks(english) if b.language == "bash")


@pytest.mark.parametrize("readme", READMES, ids=named)
def test_the_comparison_in_a_readme_is_that_of_the_pages(readme):
    """Every ratio stands on the page that its row (or the row above it) links to."""
    table = re.search(r"^## (?:Beside others|与同类相比)$(.*?)^## ", readme.read_text(), re.M | re.S)[1]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 5
    page = ""
    for what, _, ratio in rows:
        linked = re.search(r"\]\((.+?)\)", what)
        page = (ROOT / linked[1]).read_text() if linked else page
        assert re.search(rf"(?<![\d.]){re.escape(ratio.strip())}(?!\d)", page), (what, ratio)
    assert min(float(row[2]) for row in rows) < 1, "losses stay in"


@pytest.mark.parametrize("method", sorted({*METHODS, "apa_fl"}))
@pytest.mark.parametrize("language", ["", "zh"])
def test_every_method_has_formula_flow_code_and_statement(method, language):
    page = DOCS / language / "methods" / f"{method}.md"
    found = blocks(page)
    assert _formulas(page)
    assert any(b.language == "mermaid" for b in found)
    assert any(b.runs and f"method={method}" in b.body for b in found)
    assert any(b.language == "python" and b.runs for b in found)
    assert any(b.language == "markdown" and "output" in b.marks for b in found)
    assert f"{method}.md" in (page.parent / "index.md").read_text()


@pytest.mark.parametrize("page", [*PAGES, *sorted(CHINESE.rglob("*.md")), *READMES], ids=named)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s#]+)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        if not re.match(r"\w+:", target):
            assert (page.parent / target).exists(), target


def test_what_is_not_run_says_why():
    for page in PAGES:
        for block in blocks(page):
            assert "no-run" not in block.marks or block.marks["no-run"], f"{named(page)}:{block.line}"


def test_the_marks_do_what_they_say(tmp_path, monkeypatch):
    """The runner itself: a wrong command, a wrong output and a block with no language are all found."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "none.md"

    def with_text(text):
        monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: text)

    with_text("```bash\nfedveil run roundz=3\n```\n")
    with pytest.raises(AssertionError, match="no such setting"):
        run_page(page, tmp_path)
    with_text("```bash exits=2\nfedveil run roundz=3\n```\n")
    run_page(page, tmp_path)
    with_text("```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError, match="none.md:1"):
        run_page(page, tmp_path)
    with_text("```python\nprint('a'); print('b')\n```\n\n```text output\na\n...\n```\n")
    assert shortened(run_page(page, tmp_path)[0], "a\n...\n") == "a\n...\n"
    with_text("```\nfedveil run\n```\n")
    with pytest.raises(AssertionError, match="needs a language"):
        blocks(page)
    with_text("```bash needs=nothing\nfedveil nothing\n```\n")
    assert run_page(page, tmp_path) == []
    assert missing(blocks(page)[0]) == "nothing"


def _code(page):
    return [(b.language, b.marks, b.body) for b in blocks(page) if b.language != "mermaid"]


def _formulas(page):
    return re.findall(r"\$\$(.+?)\$\$", page.read_text(), re.S)


def _headings(page):
    return [len(h) for h in re.findall(r"^(#+) ", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)]


def _rows(page):
    """How many rows of tables and how many list items there are under each heading."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return [len(re.findall(r"^(?:\||- |\d+\. )", part, re.M)) for part in re.split(r"^#+ ", text, flags=re.M)]


def _pictures(page):
    return re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
