"""What the numbers were measured on."""

import os
import platform
import re
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from loadtest.tools import find_program

PACKAGES = ("topics", "trio", "httptools", "msgspec", "redis", "hiredis", "nats-py")
PROGRAMS = {"redis-server": "--version", "wrk": "--version", "nats-server": "--version"}
VERSION = re.compile(r"\d+(\.\d+)+")
MEMORY_SYSTEMS = {"tmpfs", "ramfs"}
BUSY_LOAD = 0.3


def describe(folder: Path) -> dict[str, str]:
    seen = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.release()}",
        "file system": file_system(folder),
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.1f}",  # of others: nothing runs yet
    }
    for package in PACKAGES:
        try:
            seen[package] = version(package)
        except PackageNotFoundError:
            continue
    for program, flag in PROGRAMS.items():
        path = find_program(program)
        if path is not None:
            answer = subprocess.run([path, flag], capture_output=True, text=True, check=False)
            found = VERSION.search(answer.stdout + answer.stderr)
            seen[program] = found[0] if found else "of unknown version"
    return seen


def warnings(folder: Path) -> list[str]:
    found = []
    if file_system(folder) in MEMORY_SYSTEMS:
        found.append(f"{folder} is in memory: a sync costs nothing there; choose another place with --data")
    if os.getloadavg()[0] > BUSY_LOAD * len(os.sched_getaffinity(0)):
        found.append(f"the machine is busy (load {os.getloadavg()[0]:.1f}): do not trust the numbers")
    return found


def file_system(folder: Path) -> str:
    """The type of the mount that holds a folder."""
    best, kind = "", "unknown"
    real = os.path.realpath(folder)
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        if os.path.commonpath([mount, real]) == mount and len(mount) >= len(best):
            best, kind = mount, name
    return kind


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
