"""What trains at the SuperLink: FedVeil's round loop over the sites, and its report at the end."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedveil.report.html import write_report
from fedveil.runtime.flower.server_app import Lines, deploy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out, or go on with, the run that the run config names."""
    folder = deploy(grid, context.run_config, listeners=[Lines()])
    print(f"report: {write_report(folder.path)}", flush=True)
