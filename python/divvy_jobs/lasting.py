"""Lasting slices, by the program `divvy`: made where they are missing, changed where they were made otherwise."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from divvy_jobs import agent
from divvy_jobs.agent import Fault

#: The longest name of a slice.
LONGEST = 63
#: The codes of two refusals: a slice of that name is there, or is not.
NAME_TAKEN, NO_SLICE = "D0021", "D0020"
#: What can be changed of a slice that is there.
CHANGED = ("memory", "compute", "cap", "class")
#: What a user's programs need to find the same agent.
VARIABLES = ("DIVVY_RUN_DIR", "DIVVY_EMULATED")


def name_of(text: str) -> str:
    """A slice's name of a text: itself where it may be one, else with a digest, so that no two texts have one name."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) and len(text) <= LONGEST:
        return text
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip("-._")
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{plain[: LONGEST - 11] or 'user'}-{digest}"


def as_user(user: str | None) -> dict[str, Any]:
    """How `subprocess` starts a program as this user: nothing where that is this process's own, or where only root could.

    Raises:
        Fault: this machine has no such user.
    """
    if user is None or os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise Fault(f"this machine has no user {user!r}") from None
    if entry.pw_uid == 0:
        return {}
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    environment = {name: os.environ[name] for name in ("PATH", *VARIABLES) if name in os.environ}
    return {
        "user": entry.pw_uid,
        "group": entry.pw_gid,
        "extra_groups": groups,
        "cwd": "/",
        "env": {**environment, "HOME": entry.pw_dir, "USER": entry.pw_name},
    }


def run(arguments: Sequence[str], user: str | None = None) -> Any:
    """What `divvy ARGUMENTS -o json` prints, run as `user`. See `agent.command`.

    Raises:
        Fault: `divvy` is missing, or refused.
    """
    return agent.command(*arguments, options=as_user(user))


def ensure(name: str, terms: Mapping[str, str], user: str | None = None) -> Any:
    """Makes the slice `name` with these flags (`memory`, `compute`, `cap`, ...), or changes the one of that name to them.

    Raises:
        Fault: there is no space, or a term makes no sense.
    """
    try:
        return run(["slice", "create", name, *_flags(terms, terms)], user)
    except Fault as fault:
        if fault.code != NAME_TAKEN:
            raise
    return run(["resize", name, *_flags(terms, CHANGED)], user)


def _flags(terms: Mapping[str, str], names: Iterable[str]) -> list[str]:
    return [word for name in names if terms.get(name) for word in (f"--{name}", terms[name])]


def for_containers(name: str) -> str:
    """The CDI device of a slice, which lets containers into it."""
    return str(run(["container", "cdi", "slice", "--slice", name])["device"])


def delete(name: str, user: str | None = None) -> None:
    """Deletes the slice where it is there, and ends what runs in it."""
    try:
        run(["slice", "delete", name, "--yes"], user)
    except Fault as fault:
        if fault.code != NO_SLICE:
            raise
