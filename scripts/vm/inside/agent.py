# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest's end of the line: runs what the host asks for, sends output as it comes.

It runs under the guest's python with -S -E and imports only the standard library and `wire`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import tarfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vm.inside import wire
else:
    import wire


OWN_JOB = Path("/run/vm/job")


def find_port() -> str:
    """The device of the port named `wire.PORT`; raises SystemExit when the kernel shows none."""
    for _ in range(100):
        for name in Path("/sys/class/virtio-ports").glob("*/name"):
            if name.read_text().strip() == wire.PORT:
                return f"/dev/{name.parent.name}"
        time.sleep(0.05)
    raise SystemExit(
        "no virtio-serial port: the kernel needs CONFIG_VIRTIO_PCI and CONFIG_VIRTIO_CONSOLE"
    )


class Line:
    """The port; frames are written whole whichever thread writes them."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR)
        self._lock = threading.Lock()

    def send(self, kind: bytes, job: int, data: bytes = b"") -> None:
        """Write one frame; blocks while the host does not read."""
        view = memoryview(wire.Frame(kind, job, data).encode())
        with self._lock:
            while view:
                view = view[os.write(self._fd, view) :]

    def send_exit(self, job: int, status: int, error: str = "") -> None:
        """Tell the host that a job has ended."""
        self.send(wire.EXIT, job, json.dumps({"status": status, "error": error}).encode())

    def receive(self) -> wire.Frame | None:
        """The next frame; waits for it."""
        return wire.read_frame(self._read)

    def _read(self, size: int) -> bytes:
        while True:
            data = os.read(self._fd, min(size, wire.CHUNK))
            if data:
                return data
            # Nothing is connected on the host's side (a snapshot is being taken).
            time.sleep(0.02)


class Agent:
    """Carries out the host's frames."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def run(self, frame: wire.Frame) -> None:
        """Start a command in a session of its own; its output and status follow as they come."""
        order = json.loads(frame.data)
        try:
            process = subprocess.Popen(
                order["argv"],
                env={**os.environ, **order["env"]},
                cwd=order["cwd"],
                stdin=subprocess.PIPE if order["stdin"] else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self.line.send_exit(frame.job, 127, str(error))
            return
        self.running[frame.job] = process
        threading.Thread(target=self._follow, args=(frame.job, process), daemon=True).start()

    def _follow(self, job: int, process: subprocess.Popen[bytes]) -> None:
        pumps = [
            threading.Thread(target=self._pump, args=(kind, job, stream), daemon=True)
            for kind, stream in ((wire.OUT, process.stdout), (wire.ERR, process.stderr))
        ]
        for pump in pumps:
            pump.start()
        status = process.wait()
        for pump in pumps:
            # A child left behind may hold the pipe open for ever: what it prints is not this job's.
            pump.join(timeout=2.0)
        self.running.pop(job, None)
        self.line.send_exit(job, 128 - status if status < 0 else status)

    def _pump(self, kind: bytes, job: int, stream: io.BufferedReader) -> None:
        while data := os.read(stream.fileno(), wire.CHUNK):
            self.line.send(kind, job, data)

    def files(self, frame: wire.Frame) -> None:
        """Unpack a tar at /."""
        with tarfile.open(fileobj=io.BytesIO(frame.data)) as archive:
            archive.extractall("/")
        self.line.send_exit(frame.job, 0)

    def fetch(self, frame: wire.Frame) -> None:
        """Send a file or directory as a tar."""
        path = json.loads(frame.data)["path"]
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(path, arcname=Path(path).name)
        data = buffer.getvalue()
        for start in range(0, len(data), wire.CHUNK):
            self.line.send(wire.OUT, frame.job, data[start : start + wire.CHUNK])
        self.line.send_exit(frame.job, 0)

    def stdin(self, frame: wire.Frame) -> None:
        """Pass bytes on to a job's standard input; it may have ended meanwhile."""
        process = self.running.get(frame.job)
        if process is None or process.stdin is None:
            return
        try:
            if frame.data:
                process.stdin.write(frame.data)
                process.stdin.flush()
            else:
                process.stdin.close()
        except OSError:
            pass

    def kill(self, frame: wire.Frame) -> None:
        """Signal a job's whole session."""
        process = self.running.get(frame.job)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, json.loads(frame.data)["signal"])

    def serve(self) -> None:
        """Until the host says goodbye."""
        actions = {
            wire.RUN: self.run,
            wire.FILES: self.files,
            wire.FETCH: self.fetch,
            wire.STDIN: self.stdin,
            wire.KILL: self.kill,
        }
        while (frame := self.line.receive()) is not None and frame.kind != wire.BYE:
            try:
                actions[frame.kind](frame)
            except Exception as error:  # the host must hear of it, whatever it is
                self.line.send_exit(frame.job, 126, f"{type(error).__name__}: {error}")
        for process in list(self.running.values()):
            process.send_signal(signal.SIGKILL)


def hello() -> bytes:
    """What booted, for the host."""
    module = Path("/run/vm/module").read_text(errors="replace").strip()
    uname = os.uname()
    return json.dumps(
        {"release": uname.release, "machine": uname.machine, "module": module}
    ).encode()


def main() -> None:
    """Open the port and serve."""
    line = Line(find_port())
    line.send(wire.HELLO, 0, hello())
    agent = Agent(line)
    if OWN_JOB.exists():
        order = {"argv": OWN_JOB.read_text().split(","), "env": {}, "cwd": "/", "stdin": False}
        agent.run(wire.Frame(wire.RUN, wire.OWN_JOB, json.dumps(order).encode()))
    agent.serve()


if __name__ == "__main__":
    main()
