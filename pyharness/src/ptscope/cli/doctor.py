# SPDX-License-Identifier: GPL-2.0-or-later
"""`ptscope doctor`: what works here and why not."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ptscope.doctor.checks import CHECKS, Patient
from ptscope.errors import EXIT_DONE, PtscopeError
from ptscope.views.doctor import render


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option(
    "--module",
    "module_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="The module file to look at, instead of where it is installed or built.",
)
def doctor(as_json: bool, module_path: Path | None) -> int:
    """Say what works on this machine, what does not, and the remedy.

    Exit status: 0 when walking through the module works, 4 when a privilege or lockdown is in
    the way, 5 when the module is.
    """
    patient = Patient(module_path=module_path)
    results = [(name, check(patient)) for name, check in CHECKS]
    module = patient.module
    status = module.exit_status if isinstance(module, PtscopeError) else EXIT_DONE
    if as_json:
        answer = {
            "kernel": patient.host.release,
            "source": "pagemap" if isinstance(module, PtscopeError) else "module",
            "layout": None if isinstance(module, PtscopeError) else module.layout.name,
            "checks": [
                {
                    "name": name,
                    "status": result.status,
                    "text": result.text,
                    "remedy": result.remedy,
                }
                for name, result in results
            ],
            "error": module.to_json() if isinstance(module, PtscopeError) else None,
            "exit_status": status,
        }
        click.echo(json.dumps(answer, indent=1))
    else:
        click.echo(render(results, module if isinstance(module, PtscopeError) else None))
    return status
