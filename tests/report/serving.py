"""The live page in a thread of the test, on a port of its own."""

import http.client
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from fedveil.report.live.folders import Folders
from fedveil.report.live.guard import bind
from fedveil.report.live.server import server


@contextmanager
def serving(root: Path, *, remote: bool = False):
    """Yields the port."""
    site = server(Folders(root), remote=remote)
    with bind("127.0.0.1", 0, remote=False) as listening:
        thread = threading.Thread(target=lambda: site.run(sockets=[listening]), daemon=True)
        thread.start()
        end = time.monotonic() + 20
        while not site.started:
            assert time.monotonic() < end and thread.is_alive()
            time.sleep(0.005)
        try:
            yield listening.getsockname()[1]
        finally:
            site.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def ask(port: int, target: str, *, method: str = "GET", host: str | None = None):
    """A request exactly as written: status, headers, text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, target, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{port}")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode("utf-8", "replace")
    finally:
        connection.close()
