"""What trains at the SuperLink: FedVeil's round loop over the sites, and its report at the end."""

from __future__ import annotations

from flwr.app import Context
from flwr.app.exception import AppExitException
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.exit import ExitCode

from fedveil.core.errors import Refused
from fedveil.report.html import write_report
from fedveil.runtime.flower.server_app import Lines, deploy

app = ServerApp()


class Stopped(AppExitException):
    """Why a run did not go on, in words."""

    exit_code = ExitCode.SERVERAPP_EXCEPTION


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out, or go on with, the run that the run config names."""
    try:
        folder = deploy(grid, context.run_config, listeners=[Lines()])
    except Refused as refusal:
        raise Stopped(f"fedveil: {refusal}") from None
    print(f"report: {write_report(folder.path)}", flush=True)
