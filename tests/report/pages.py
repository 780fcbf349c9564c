"""Reads a page as a browser would."""

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and collects what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script" and "head" not in self.open:  # the head's script chooses the colours
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            if "head" not in self.open:
                self.scripts[-1] += data
        elif self.open and self.open[-1] != "style":
            self.text += data

    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]

    def figures(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.scripts[0])
        return found
