"""What every program here says: one line of JSON for each thing that it looked at.

A library's own words come in the field `said`: names of the machine are taken out of them.
"""

import json
import sys
import time

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
        holds = wanted(error)
        promise(check, holds, f"refused with {type(error).__name__}", **({} if holds else {"said": str(error)[:200]}))
    except Exception as error:  # noqa: BLE001 - any other error is the finding
        promise(check, False, f"refused with {type(error).__name__}", said=str(error)[:200])
    else:
        promise(check, False, "more than the slice has was given out")


def version(module):
    """The library's version, and Python's."""
    fact("version", f"{module.__name__} {module.__version__}, Python {sys.version.split()[0]}")


def is_loop():
    """Whether this program is one of two that run at once. Its steps are few and short where the device is an emulated one."""
    return sys.argv[1:2] == ["loop"]


def is_look():
    """Whether this program only shows that the library computes on the device at all."""
    return sys.argv[1:2] == ["look"]


def is_small():
    """Whether the device is an emulated one."""
    return sys.argv[2:] == ["small"]


def loop(step, synchronize, right):
    """Says that it is ready, is told seconds by a line, does steps for so long, and says how many they were."""
    ahead = 2 if is_small() else 16
    step()
    synchronize()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        begin, steps = time.monotonic(), 0
        while time.monotonic() - begin < float(line):
            for _ in range(ahead):
                step()
            synchronize()
            steps += ahead
        seconds = time.monotonic() - begin
        # Of two that began together the one with the longer last round would count more.
        print(json.dumps({"steps": steps * float(line) / seconds, "seconds": seconds, "right": bool(right())}), flush=True)
