"""``fedveil ui``: the pages over HTTP; nothing under the root is ever written, and only run folders are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fedveil.core.errors import Refused
from fedveil.report.compare import comparison
from fedveil.report.live import pages
from fedveil.report.live.folders import MARKS, Folders, Outside
from fedveil.report.live.guard import Guard, bind
from fedveil.report.matrix import page as matrix_page
from fedveil.report.shell import asset, stylesheet

SCRIPTS = ("theme.js", "report.js", "live.js", "compare.js", "plotly.js")
COMPARED = 300
"""Most runs in one comparison of the live page."""


def serve(root: Path, host: str, port: int, *, remote: bool, opened: Callable[[str], None]) -> None:
    """Serve until interrupted; ``opened`` is called with the address once somebody can connect."""
    folders = watched(root)
    with bind(host, port, remote=remote) as listening:
        opened(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/")
        server(folders, remote=remote).run(sockets=[listening])


def server(folders: Folders, *, remote: bool = False) -> uvicorn.Server:
    """What answers on a socket; it tells nobody what it is, and believes no proxy."""
    app = application(folders, remote=remote)
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False, "lifespan": "off"}
    return uvicorn.Server(uvicorn.Config(app, **quiet, proxy_headers=False, ws="none", timeout_graceful_shutdown=1))


def watched(root: Path) -> Folders:
    """The runs under a folder; refused where there is none."""
    if not root.is_dir():
        raise Refused(f"folder: there is no folder {root}; give the one that holds your runs, such as runs")
    if any((root / mark).is_file() for mark in MARKS):
        raise Refused(f"folder: {root} is one run; give the folder that holds it, {root.absolute().parent}")
    return Folders(root)


def application(folders: Folders, *, remote: bool = False) -> ASGIApp:
    """The whole site; every route answers GET and HEAD alone."""
    site = _Site(folders)
    routes = [
        Route("/", site.runs),
        Route("/state", site.state),
        Route("/state/{name:path}", site.state_of),
        Route("/runs/{name:path}", site.run),
        Route("/compare", site.compare),
        Route("/matrix/{name:path}", site.matrix),
        Route("/assets/{name}", site.assets),
    ]
    handlers: Any = {HTTPException: _refused, Outside: _unknown, Exception: _broken}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, remote)


class _Site:
    """What each address shows."""

    def __init__(self, folders: Folders) -> None:
        self.folders = folders

    def runs(self, request: Request) -> Response:
        return _page(pages.run_list(self.folders, self.folders.all(), self.folders.matrices()))

    def state(self, request: Request) -> Response:
        found = self.folders.all()
        going = sum(f.status == "running" for f in found)
        text = f"{len(found):,} runs, {going:,} running"
        return _told(pages.version_of(found, self.folders.matrices()), text, going > 0)

    def state_of(self, request: Request) -> Response:
        found = self.folders.find(request.path_params["name"])
        text = found.status
        if found.row is not None:
            accuracy = "" if found.row.accuracy is None else f", accuracy {100 * found.row.accuracy:.1f} %"
            text += f", {found.row.rounds:,.0f} rounds{accuracy}"
        return _told(found.version, text, found.status == "running")

    def run(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = self.folders.find(name)
        try:
            return _page(pages.one_run(found, self.folders.read(name)))
        except Refused as refusal:
            return _page(pages.trouble(name, str(refusal), follows=found))
        except Exception as problem:  # files edited into something that no reader foresaw
            text = f"This run cannot be shown ({type(problem).__name__}); its files are damaged."
            return _page(pages.trouble(name, text, follows=found))

    def compare(self, request: Request) -> Response:
        names = request.query_params.getlist("run") or [f.name for f in self.folders.all()]
        found = {}
        for name in list(dict.fromkeys(names))[:COMPARED]:
            if self.folders.find(name).row is not None:  # else the list says what is wrong with it
                found[name] = self.folders.read(name)
        left = len(set(names)) - len(found)
        notice = f"{left:,} runs are left out: they are damaged, or more than {COMPARED}." if left else ""
        return _page(comparison(found, notice=notice, linked=True, above=pages.BACK))

    def matrix(self, request: Request) -> Response:
        name = request.path_params["name"]
        path = self.folders.place(name) / "matrix.json"
        if path.is_symlink() or not path.is_file():
            raise Outside(name)
        try:
            return _page(matrix_page(orjson.loads(path.read_bytes()), linked=True, above=pages.BACK))
        except Exception as problem:
            return _page(pages.trouble(name, f"matrix.json cannot be read ({type(problem).__name__})."))

    def assets(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "report.css":
            return Response(stylesheet(), media_type="text/css")
        if name not in SCRIPTS:
            raise Outside(name)
        return Response(asset(name), media_type="text/javascript")


def _page(text: str, status: int = 200) -> Response:
    """A page; what a damaged file holds beside text is replaced."""
    return Response(text.encode("utf-8", "replace"), status, media_type="text/html")


def _told(state: str, text: str, running: bool) -> Response:
    body = {"version": state, "text": text, "running": running}
    return Response(orjson.dumps(body), media_type="application/json")


def _unknown(request: Request, problem: Exception) -> Response:
    return _page(pages.trouble("Not found", "There is no such run here."), 404)


def _refused(request: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    text = "There is no such page." if status == 404 else "This page can only be read."
    return _page(pages.trouble("Not found" if status == 404 else "Refused", text), status)


def _broken(request: Request, problem: Exception) -> Response:
    return _page(pages.trouble("Broken", f"This page failed ({type(problem).__name__})."), 500)
