"""`python -m divvy`: the command that this package installed."""

import os
import sys
import sysconfig
from importlib import metadata


def places() -> list[str]:
    """Where the command may lie, the likeliest first. `pip install --user`, `--prefix` and `--target` have their own."""
    found = []
    try:
        # What the installer wrote down. After `--target` it is wrong: pip moves the files afterwards.
        files = metadata.distribution("divvy").files or []
        found += [str(file.locate()) for file in files if file.name == "divvy" and file.parent.name == "bin"]
    except metadata.PackageNotFoundError:
        pass
    site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found.append(os.path.join(site, "bin", "divvy"))
    for scheme in sysconfig.get_scheme_names():
        if os.path.realpath(sysconfig.get_path("purelib", scheme)) == os.path.realpath(site):
            found.append(os.path.join(sysconfig.get_path("scripts", scheme), "divvy"))
    found.append(os.path.join(sysconfig.get_path("scripts"), "divvy"))
    return [os.path.normpath(place) for place in found]


def main() -> None:
    """Becomes the command."""
    for command in places():
        if not os.access(command, os.X_OK) or not os.path.isfile(command):
            continue
        if not os.path.isdir(os.path.join(os.path.dirname(os.path.dirname(command)), "lib", "divvy")):
            # pip takes the data's `lib` for another one, and leaves it out.
            sys.exit(
                "divvy: `pip install --target` leaves Divvy's libraries out: "
                "install it with --prefix, or in an environment of its own"
            )
        os.execv(command, [command, *sys.argv[1:]])
    sys.exit("divvy: the command is not where this package was installed: install it again")


if __name__ == "__main__":
    main()
