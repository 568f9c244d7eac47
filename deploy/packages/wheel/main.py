"""`python -m divvy`: the command that this package installed."""

import os
import sys
import sysconfig


def main() -> None:
    """Becomes the command."""
    command = os.path.join(sysconfig.get_path("scripts"), "divvy")
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
