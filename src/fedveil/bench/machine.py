"""The machine: what it is, how fast it multiplies matrices, and how much memory a process has taken."""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fedveil
from fedveil.core.native import kernel
from fedveil.local.precision import products

REPEATS = 7


def about(device: str, threads: int, precision: str) -> dict[str, Any]:
    """What a reader must know to judge the numbers."""
    card = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "fedveil": fedveil.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "machine": card or _cpu(),
        "threads": threads,
        "precision": precision,
        "noise kernel": "compiled" if kernel is not None else "not compiled: no compiler was found at installation",
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def peaks(device: str) -> dict[str, float]:
    """FLOP/s of a large matrix product, by number format: the limit that a round is held against."""
    if device == "cpu":
        return {"float32": product("cpu", torch.float32, 2048)}
    with products("float32"):
        found = {"float32": product(device, torch.float32, 8192)}
    with products("tf32"):
        found["tf32"] = product(device, torch.float32, 8192)
    found["bf16"] = product(device, torch.bfloat16, 8192)
    return found


def product(device: str, dtype: torch.dtype, size: int) -> float:
    """The best of several products of two square matrices."""
    a = torch.randn(size, size, device=device).to(dtype)
    b, out = a.clone(), torch.empty_like(a)
    best = min(timed(lambda: torch.mm(a, b, out=out), device) for _ in range(REPEATS))
    return 2 * size**3 / best


def timed(work: Callable[[], object], device: str) -> float:
    """Seconds that something takes, until the device is done."""
    finish(device)
    started = time.perf_counter()
    work()
    finish(device)
    return time.perf_counter() - started


def finish(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def resident() -> int:
    """Bytes of main memory that this process holds now; its most so far where the system does not tell."""
    return _status("VmRSS") or highest_resident()


def highest_resident() -> int:
    """The most bytes of main memory that this process has held.

    Linux hands the high-water mark of ``getrusage`` from a parent on to its children; ``VmHWM`` starts anew.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmHWM") or usage * (1 if sys.platform == "darwin" else 1024)


def _status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
