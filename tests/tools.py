"""Programs that some tests need and a machine may not have."""

import os
import shutil
from typing import NoReturn

import pytest

REQUIRE = "TOPICS_REQUIRE_BROWSER"


def need(*names: str, always_optional: bool = False) -> str:
    """The path of the first of these programs that is here; else the test is skipped, or fails (see `missing`)."""
    where = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
    found = [path for name in names if (path := shutil.which(name, path=where))]
    reason = f"no {' or '.join(names)} on this machine"
    if not found and always_optional:
        pytest.skip(reason)
    return found[0] if found else missing(reason)


def missing(reason: str) -> NoReturn:
    """Skip the test; where everything must be there (REQUIRE=1), let it fail."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{reason}, and {REQUIRE}=1", pytrace=False)
    pytest.skip(reason)
