"""Work that is killed: at the n-th touch of a folder, or after some seconds; and what must be whole then."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from safetensors import safe_open

from kernelhead.records import METRICS

Work = Callable[[], object]
TOUCHES = {"os.mkdir", "os.rename", "os.remove", "os.chmod", "tempfile.mkstemp"}
# Figures of the clock and of the machine, which no two runs share.
OF_THE_CLOCK = {"seconds", "seconds_per_epoch", "peak_memory_mib", "date", "machine", "versions", "commit"}


def touched_by(work: Work, folder: Path) -> int:
    """How often work makes, renames or removes something in a folder: as many as it can be killed at."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = _counting(folder, lambda number: None)
        code = _done(work)
        os.write(tell, str(count()).encode())
        os._exit(code)
    os.close(tell)
    with os.fdopen(told) as answer:
        found = answer.read()
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise AssertionError("the work does not end well where nobody kills it")
    return int(found)


def killed_at(work: Work, folder: Path, place: int) -> bool:
    """Do work in a process that is killed just before its n-th touch of a folder; whether it was."""
    pid = os.fork()
    if pid == 0:

        def kill(number: int) -> None:
            if number == place:
                os.kill(os.getpid(), signal.SIGKILL)

        _counting(folder, kill)
        os._exit(_done(work))
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def killed_after(work: Work, seconds: float, folder: Path) -> bool:
    """Do work in a process that is killed after some time, its folder read all the while; whether it was."""
    pid = os.fork()
    if pid == 0:
        os._exit(_done(work))
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and os.waitpid(pid, os.WNOHANG) == (0, 0):
        check_whole(folder)
        time.sleep(0.002)
    try:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return False
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def check_whole(folder: Path) -> list[str]:
    """Read every file of a folder to its end, and return their names; temporary files begin with a dot."""
    found = []
    # Not `rglob`, which ends where a folder was taken away since it was listed.
    for path in sorted(Path(parent) / name for parent, _, names in os.walk(folder) for name in names):
        if path.name.startswith("."):
            continue
        try:
            _read(path)
        except FileNotFoundError:  # taken away since it was listed
            continue
        found.append(path.relative_to(folder).as_posix())
    return found


def held_by(folder: Path, *, hidden: bool = True) -> dict[str, Any]:
    """What every file of a folder says, hidden ones too, less what the clock decides."""
    return {
        path.relative_to(folder).as_posix(): _said(path)
        for path in sorted(folder.rglob("*"))
        if not path.is_dir() and (hidden or not path.name.startswith("."))
    }


def _counting(folder: Path, act: Callable[[int], None]) -> Callable[[], int]:
    """Watch this process, which keeps the watch until it ends."""
    seen, inside = [0], str(folder)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        touch = event in TOUCHES or (event == "open" and isinstance(given[1], str) and given[1][:1] in "wax")
        if touch and str(given[0]).startswith(inside):
            seen[0] += 1
            act(seen[0])

    sys.addaudithook(hook)
    return lambda: seen[0]


def _done(work: Work) -> int:
    """The exit code of work in a forked process, whose words go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        work()
    except BaseException:  # whatever it is, the process ends here
        return 1
    return 0


def _read(path: Path) -> Any:
    """The content of a file by its suffix; anything but a whole file raises."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as opened:
            return {name: opened.get_tensor(name).tobytes() for name in opened.keys()}  # noqa: SIM118
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.name == METRICS:
        return [json.loads(line) for line in text.splitlines()]
    if path.suffix == ".html":
        _Page().feed(text)
        if not text.rstrip().endswith("</html>"):
            raise AssertionError(f"{path} ends with {text[-20:]!r}")
    return text


class _Page(HTMLParser):
    """Reads a page to its end."""


def _said(path: Path) -> Any:
    if path.name.startswith("."):
        return path.stat().st_size
    if path.suffix == ".html":
        return len(path.read_text(encoding="utf-8")) > 1000
    return _timeless(_read(path))


def _timeless(held: Any) -> Any:
    if isinstance(held, dict):
        return {name: _timeless(value) for name, value in held.items() if name not in OF_THE_CLOCK}
    return [_timeless(each) for each in held] if isinstance(held, list) else held
