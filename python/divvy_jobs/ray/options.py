"""What a job may say about its slices: the value of `divvy` in a runtime environment."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from divvy_jobs.agent import Fault

_CAPS = ("soft", "hard")
_ISOLATION = ("cooperative", "supervised")


@dataclasses.dataclass(frozen=True)
class Options:
    """How slices are made. Each field may be left out."""

    #: The share of the device's time in percent, in place of what `num_gpus` says.
    compute: float | None = None
    #: Whether a share is a bound too: `soft` (others' idle time may be used) or `hard`.
    cap: str = "soft"
    #: The least isolation level: `cooperative` or `supervised`; the agent's own choice where it is left out.
    isolation: str | None = None
    #: Seconds to wait for memory that a worker before this one is just giving back.
    wait_s: float = 30.0
    #: Seconds between two readings for Ray's metrics; 0 for none.
    metrics_s: float = 5.0

    @classmethod
    def of(cls, value: object) -> Options:
        """Reads the value.

        Raises:
            Fault: it has a field that there is not, or a value that makes no sense.
        """
        if not isinstance(value, Mapping):
            raise Fault(f"runtime_env: `divvy` is an object, as {{}} or {{'cap': 'hard'}}, and not {value!r}")
        names = {field.name for field in dataclasses.fields(cls)}
        for name in value:
            if name not in names:
                raise Fault(f"runtime_env: `divvy` has no field {name!r}", hint=f"it has {', '.join(sorted(names))}")
        options = cls(**value)
        options._check()
        return options

    def _check(self) -> None:
        def refuse(name: str, form: str) -> Fault:
            return Fault(f"runtime_env: divvy.{name} is {form}, and not {getattr(self, name)!r}")

        def is_number(value: object, least: float, most: float) -> bool:
            return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most

        if self.compute is not None and not is_number(self.compute, 0.01, 100):
            raise refuse("compute", "a number of percent, from 0.01 to 100")
        if self.cap not in _CAPS:
            raise refuse("cap", "'soft' or 'hard'")
        if self.isolation is not None and self.isolation not in _ISOLATION:
            raise refuse("isolation", "'cooperative' or 'supervised'")
        if not is_number(self.wait_s, 0, 86_400):
            raise refuse("wait_s", "a number of seconds, at most a day")
        if not is_number(self.metrics_s, 0, 86_400):
            raise refuse("metrics_s", "a number of seconds, at most a day")

    def written(self) -> str:
        """For a worker's environment."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Options:
        """What `written` wrote."""
        return cls.of(json.loads(text))
