"""Where a worker's slice will be: a link for each worker, in a folder that only its user can reach.

A worker starts before Ray says what it may have. It starts with the path of a link that is not there yet, and CUDA answers
meanwhile that the system is not ready. When the slice is made, its socket is linked there.
"""

from __future__ import annotations

import os
import stat

from divvy_jobs.agent import Fault

#: The name of the link in a worker's folder; it is the name of a slice's socket too.
LINK = "attach.sock"


def base() -> str:
    """The folder of this user's workers, made where it is missing. Folders of workers that ended are removed.

    Raises:
        Fault: the folder is another user's, or others can write to it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = runtime if os.path.isdir(runtime) else "/tmp"
    folder = os.path.join(parent, f"divvy-ray-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise Fault(f"cannot make {folder}", causes=[str(error)]) from error
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Fault(
            f"{folder} is not a folder of this user's alone",
            hint="remove it, or set XDG_RUNTIME_DIR to a folder of your own",
        )
    for name in os.listdir(folder):
        if name.isdigit() and not os.path.exists(f"/proc/{name}"):
            _remove(os.path.join(folder, name))
    return folder


def _remove(folder: str) -> None:
    try:
        unlink(os.path.join(folder, LINK))
        os.rmdir(folder)
    except OSError:
        # Another sweep was quicker, or it has something that is not ours.
        pass


def prepare(link: str) -> None:
    """Makes the folder of a link, and removes what a process of the same number has left there."""
    os.makedirs(os.path.dirname(link), mode=0o700, exist_ok=True)
    unlink(link)


def set_link(link: str, socket: str) -> None:
    """Links a slice's socket, in the place of another."""
    unlink(link)
    os.symlink(socket, link)


def unlink(link: str) -> None:
    """Removes a link where there is one."""
    try:
        os.unlink(link)
    except FileNotFoundError:
        pass
