"""What every program here says: one line of JSON for each thing that it looked at."""

import json
import sys

LIMIT = 4 << 30


def promise(check, holds, says, **more):
    """A promise that holds or does not."""
    print(json.dumps({"check": check, "holds": bool(holds), "says": says, **more}), flush=True)


def fact(check, says, **more):
    """A fact of this machine."""
    print(json.dumps({"check": check, "says": says, **more}), flush=True)


def refuses(check, what, errors, wanted):
    """Whether `what` is refused as the library refuses when there is no memory left."""
    try:
        what()
    except errors as error:
        promise(check, wanted(error), f"refused with {type(error).__name__}")
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        promise(check, False, f"refused with {type(error).__name__}: {str(error)[:200]}")
    else:
        promise(check, False, "more than the slice has was given out")


def version(module):
    """The library's version, and Python's."""
    fact("version", f"{module.__name__} {module.__version__}, Python {sys.version.split()[0]}")
