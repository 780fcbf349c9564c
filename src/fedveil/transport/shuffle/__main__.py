"""The shuffler as a process of its own: framed messages come in on standard input, batches go out on output."""

from __future__ import annotations

import sys

from fedveil.transport.shuffle.shuffler import serve

if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
