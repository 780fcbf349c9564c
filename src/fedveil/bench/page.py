"""The results page, written from reports: every number on it is computed, losses are marked like wins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.bench.goals import GOALS, limit
from fedveil.core.errors import Refused

Report = dict[str, Any]

RULES = """\
- **One run, one machine, the same work.** Random images in the shape of MNIST (100 clients of 600), the same first
  weights, cohorts and batches for all, batch 32, one epoch, no momentum. Private scenarios draw Poisson batches (32 on
  average), and everybody gets the same ones; the noise differs. Flower draws its cohorts itself, from clients of the
  same size.
- **Ours** is the engine that `engine=auto` picks plus both halves of a round: local training, clipping, noise,
  aggregation, server step. The ledger, evaluation, checkpoints and the report are no part of it, nor of any peer's
  round here; *whole runs* below have them all.
- **Weights are compared first**: two rounds in float64 with the noise off must agree to 1e-5, or nothing is timed.
- **Peers are used favourably**: data in memory, one module for all clients with weights copied in place (Opacus,
  loops), no data loader, no accountant, no metrics; Flower's and Ray's start is left out and its actors keep their
  data. The loops are bare torch: `loop` is autograd with in-place updates, `loop, torch.func` clips every example with
  `vmap(grad)`.
- **Turns.** Contenders compute in turns of about half a second; a ratio is taken within a turn, and stands as median
  (least to most) over the repetitions. `x 3` means that the other needs three times as long as ours; **below 1 ours
  loses**.
- Everybody has the same threads. `fedveil run` gives models below 500,000 parameters one thread unless `threads` says
  otherwise, since a second process on the same cores costs small models more than a second thread brings.
- Noise of ours comes from `rng: seeded` streams, rounded to a grid against floating-point attacks; *secure streams*
  stands beside it. Noise of the peers is plain floating point.
- **Useful FLOPs**: the matrix products of plain training (forward once, backward twice, none towards the input of the
  first layer), against the fastest large matrix product measured in the same run. Per-example norms count as nothing.
- On a GPU everybody multiplies in the same number format (cuDNN's default of tf32 is off for `float32`; beside ours in
  `bf16` the loops have tf32).
- Peak memory on a CPU is that of a fresh process, imports and data included (ours keeps the whole population ready,
  the loops hold the clients of one round); on a GPU what was allocated beyond what was there before."""


def read(paths: Sequence[Path]) -> list[Report]:
    """Reports that were saved as JSON; parts of one, measured on the same machine with ``--only``, are joined."""
    found: list[Report] = []
    for path in paths:
        try:
            report = json.loads(path.read_text())
            _ = report["about"]["device"], report["scenarios"]
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise Refused(
                f"{path}: is no report of `fedveil bench engine` ({problem}); give the file of --json"
            ) from None
        same = next((known for known in found if known["about"] == report["about"]), None)
        if same is None:
            found.append(report)
        else:
            for part in ("scenarios", "whole", "growth", "convolutions", "seconds"):
                same[part] |= report[part]
    return found


def page(reports: Sequence[Report]) -> str:
    """The page as Markdown."""
    lines = [
        "# The cohort engine, measured",
        "",
        "Written by `fedveil bench engine --from REPORT --page FILE` out of what",
        "`fedveil bench engine --json REPORT` keeps; no number here is typed.",
        "",
        RULES,
    ]
    for report in reports:
        lines += ["", f"## {_title(report)}", "", *_section(report)]
    return "\n".join(lines).rstrip() + "\n"


def _title(report: Report) -> str:
    about = report["about"]
    if about["device"] == "cuda":
        return f"GPU: {about['machine']}, {about['precision']}"
    return f"CPU: {about['machine']}, {about['threads']} threads"


def _section(report: Report) -> Iterator[str]:
    about = report["about"]
    yield (
        f"FedVeil {about['fedveil']}, torch {about['torch']}, Python {about['python']}. Largest matrix products: "
        + ", ".join(f"{name} {_flops(value)}" for name, value in report["peaks"].items())
        + "."
        + (f" Noise kernel: {about['noise kernel'].split(':')[0]}." if "noise kernel" in about else "")
    )
    if report.get("quick"):
        yield ""
        yield "**A quick run: tiny sizes, its numbers mean nothing.**"
    yield from _goals(report)
    for name, row in report["scenarios"].items():
        yield from ("", f"### {name}", "")
        yield from _scenario(report, row)
    yield from _whole(report)
    yield from _growth(report)
    yield from _convolutions(report)


def _goals(report: Report) -> Iterator[str]:
    rows = []
    for goal in (g for g in GOALS if g.device == report["about"]["device"]):
        bound = "at least" if goal.least else "below"
        rows.append((goal.words, f"{bound} {goal.target:g}{goal.unit}", goal.shown(report), goal.verdict(report)))
    yield from ("", "### Goals", "")
    yield from table(("goal", "asked", "measured", ""), rows)


def _scenario(report: Report, row: Report) -> Iterator[str]:
    if "failed" in row:
        yield f"Failed: {row['failed']}"
        return
    rows = []
    for name, found in row["contenders"].items():
        if "missing" in found:
            rows.append((name, "-", "-", found["missing"], "-", "-"))
            continue
        times = "1" if name == "ours" else _times(found["times_ours"])
        rows.append(
            (
                name,
                f"{1e3 * found['seconds']['median']:.4g}",
                f"{found['rounds_per_second']:.4g}",
                times,
                _mebibytes(found.get("memory", {}).get("peak")),
                f"{found['first_round']:.2f}",
            )
        )
    yield from table(("", "ms per round", "rounds/s", "ours is faster by", "peak memory, MiB", "first round, s"), rows)
    ours = row["contenders"]["ours"]
    share = 100 * ours["flops_per_second"] / limit(report)
    yield ""
    yield (
        f"{row['parameters']:,} parameters, {_flops(row['flops'], '')} useful FLOPs a round: ours does "
        f"{_flops(ours['flops_per_second'])}, {share:.0f} % of the {report['about']['precision']} limit. "
        f"Engine `{row['engine']}`: {row['engine_reason']}."
    )
    if row["agreement"]:
        worst = max(row["agreement"].values())
        yield f"Largest difference of weights to ours in float64: {worst:.1e}."


def _times(found: dict[str, float]) -> str:
    words = f"x {found['median']:.3g} ({found['min']:.3g} to {found['max']:.3g})"
    return words if found["median"] >= 1 else f"**{words}: slower**"


def _whole(report: Report) -> Iterator[str]:
    if not report["whole"]:
        return
    rows = []
    for name, row in report["whole"].items():
        words = row.get("missing") or row.get("failed")
        if words:
            rows.append((name, words, "-", "-"))
            continue
        seconds = row["seconds_per_round"]
        engine = report["scenarios"].get(name.removeprefix("whole/"), {}).get("contenders", {}).get("ours", {})
        beside = f"{1 / engine['seconds']['median']:.4g}" if "seconds" in engine else "-"
        rows.append((name, f"{1 / seconds:.4g}", f"{1 / row['seconds_with_start_and_report']:.4g}", beside))
    yield from ("", "### Whole runs", "")
    yield "`fedveil.run` with the ledger, checkpoints and events, evaluating on 10,000 test examples after every round."
    yield ""
    yield from table(("", "rounds/s", "with start and HTML report", "the engine alone"), rows)


def _growth(report: Report) -> Iterator[str]:
    if not report["growth"]:
        return
    yield from ("", "### Growth", "")
    yield "`data=synthetic`, 50 examples of 64 numbers per client, MLP, FedAvg; a fresh process each."
    yield ""
    rows = []
    for name, row in report["growth"].items():
        if "failed" in row:
            rows.append((name, row["failed"], "-", "-", "-"))
            continue
        memory = row["memory"]
        rows.append(
            (
                f"{row['cohort']:,}",
                f"{row['population']:,}",
                f"{1e3 * row['seconds']:.4g}",
                f"{row['first_round']:.2f}",
                f"{_mebibytes(memory['peak'])} ({_mebibytes(memory['before'])} before the first round)",
            )
        )
    yield from table(("cohort", "population", "ms per round", "first round, s", "peak memory, MiB"), rows)


def _convolutions(report: Report) -> Iterator[str]:
    if not report.get("convolutions"):
        return
    yield from ("", "### Ways to convolve", "")
    yield (
        "Microseconds for 32 images a client, float32: forward / gradient of the input / gradient of the kernels. "
        "*In turn*: one client's cuDNN call after another; *grouped*: one call with a group per client; *engine*: "
        "patches and one batched product, or where few numbers are seen at a place a kernel that reads images directly."
    )
    yield ""
    rows = []
    for name, row in report["convolutions"].items():
        if "failed" in row:
            rows.append((name, row["failed"], "-", "-"))
            continue
        ways = [" / ".join(f"{value:,.0f}" for value in row[way].values()) for way in ("in turn", "grouped", "engine")]
        rows.append((name.removeprefix("convolutions/").replace("/", " clients: ", 1), *ways))
    yield from table(("", "in turn", "grouped", "engine"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def opening(
    title: str, command: str, rules: str, report: Mapping[str, Any], goals: Iterable[Sequence[str]]
) -> list[str]:
    """How a page of one report begins: where its numbers come from, how they were taken, and the goals."""
    about = report["about"]
    lines = [
        f"# {title}, measured",
        "",
        f"Written by `fedveil bench {command} --json REPORT --page FILE`; no number here is typed.",
        "",
        rules,
        "",
        f"FedVeil {about['fedveil']}, Python {about['python']}, {about['machine']}.",
    ]
    if report["quick"]:
        lines += ["", "**A quick run: tiny sizes, its numbers mean nothing.**"]
    return [*lines, "", "## Goals", "", *table(("goal", "asked", "measured", ""), goals)]


def _mebibytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**20:,.0f}"


def _flops(value: float, unit: str = "FLOP/s") -> str:
    """A large number with its prefix.

    >>> _flops(2.02e11), _flops(3.4e13)
    ('202 GFLOP/s', '34 TFLOP/s')
    """
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
