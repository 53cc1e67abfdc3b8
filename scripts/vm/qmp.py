# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU's machine protocol: one JSON object a line, over a connected socket."""

from __future__ import annotations

import json
import socket
from typing import Any

from .errors import NoResult, VmError


class QmpError(VmError):
    """QEMU refused a command."""

    exit_status = 207


class Qmp:
    """A connection to QEMU's monitor. Not for use by two threads at once."""

    def __init__(self, connection: socket.socket, timeout: float = 60.0) -> None:
        """``timeout`` in seconds bounds the wait for each answer."""
        connection.settimeout(timeout)
        self._connection = connection
        self._lines = connection.makefile("rb")
        self.events: list[dict[str, Any]] = []
        """What QEMU reported by itself so far (STOP, RESUME, SHUTDOWN, ...)."""
        self._receive()  # the greeting
        self.execute("qmp_capabilities")

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except OSError as error:
            raise NoResult(f"QEMU's monitor does not answer: {error}") from error
        if not line:
            raise NoResult("QEMU ended")
        message: dict[str, Any] = json.loads(line)
        return message

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run a command and return what it gives; underscores in names stand for dashes.

        Raises `QmpError` when QEMU refuses and `NoResult` when it does not answer.
        """
        order = {
            "execute": command,
            "arguments": {key.replace("_", "-"): value for key, value in arguments.items()},
        }
        try:
            self._connection.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise NoResult(f"QEMU ended: {error}") from error
        while True:
            answer = self._receive()
            if "event" in answer:
                self.events.append(answer)
            elif "error" in answer:
                raise QmpError(f"QEMU: {command}: {answer['error']['desc']}")
            else:
                return answer["return"]

    def human(self, command: str) -> str:
        """Run a command of the monitor for people (``gva2gpa 0x...``, ``info registers``)."""
        text: str = self.execute("human-monitor-command", command_line=command)
        return text.replace("\r\n", "\n")

    def close(self) -> None:
        """Close the connection; the guest goes on."""
        self._lines.close()
        self._connection.close()
