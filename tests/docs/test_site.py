"""What the site makes of a page: formulas, flows, statements, and no page that asks another machine for anything."""

import importlib.util
from types import SimpleNamespace

import pytest
from tests.docs.pages import DOCS
from tests.support import require

require("mmdr", "make docs")
require("mkdocs", "make docs")


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "theme" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page():
    return SimpleNamespace(file=SimpleNamespace(src_uri="methods/none.md"))


def test_a_flow_becomes_a_picture_of_its_own(hooks, page):
    flow = '```mermaid\nflowchart TD\n    A["数据"] --> B["model"]\n```\n'
    made = hooks.on_page_markdown(flow + flow, page=page)
    assert made.count("<svg") == 2
    assert "数据" in made
    assert 'id="flow1"' in made
    assert 'id="flow2"' in made
    assert "<script" not in made


def test_marks_become_words_and_statements_become_tables(hooks, page):
    text = '```bash no-run="two hosts"\nls\n```\n\n```markdown output\n# Privacy statement\n\n| a |\n| --- |\n| b |\n...\n```\n'
    made = hooks.on_page_markdown(text, page=page)
    assert '```bash title="not run by the tests"\nls\n```' in made
    assert "\n| b |\n\n*The notes" in made
    assert "# Privacy" not in made


def test_a_page_links_to_itself_in_the_other_language(hooks):
    def made(name):
        return hooks.on_page_markdown("# FedAvg", page=SimpleNamespace(file=SimpleNamespace(src_uri=name)))

    assert made("methods/fedavg.md") == "[中文](../zh/methods/fedavg.md){ .other-language }\n\n# FedAvg"
    assert made("zh/index.md").startswith("[English](../index.md)")
    assert made("leak.md") == "# FedAvg"


def test_links_out_of_the_documentation_keep_their_text(hooks, page):
    made = hooks.on_page_markdown("[recipe](../../src/fedveil/methods/fedavg.py) [pitfalls](../pitfalls.md)", page=page)
    assert made == "recipe (`src/fedveil/methods/fedavg.py`) [pitfalls](../pitfalls.md)"


def test_a_formula_becomes_mathml_and_an_unknown_command_is_refused(hooks):
    made = hooks.on_page_content(r'<div class="arithmatex">\[\mathcal{N}(0, \sigma^2) &lt; 1\]</div>')
    assert "<math" in made
    assert "&#x1D4A9;" in made
    with pytest.raises(Exception, match="becomes no MathML"):
        hooks.on_page_content(r'<span class="arithmatex">\(\Big\lVert x\)</span>')


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://unpkg.com/mermaid"></script>',
        '<link rel="stylesheet" href="https://fonts.googleapis.com/css">',
        '<link href="https://fonts.gstatic.com" rel="preconnect">',
        '<img alt="" src="//example.org/x.png">',
    ],
)
def test_a_page_that_loads_from_elsewhere_fails_the_build(hooks, tmp_path, tag):
    (tmp_path / "a.html").write_text('<a href="https://example.org">a link is no load</a><img src="x.png">')
    hooks.on_post_build({"site_dir": tmp_path})
    (tmp_path / "b.html").write_text(tag)
    with pytest.raises(Exception, match="from elsewhere"):
        hooks.on_post_build({"site_dir": tmp_path})
