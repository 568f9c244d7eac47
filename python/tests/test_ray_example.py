"""examples/jobs/ray_fractions.py, as its users start it. Its Python has numba besides Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tenants import CARD

EXAMPLE = Path(__file__).parents[2] / "examples/jobs/ray_fractions.py"


def test_the_example_has_its_fractions(cluster: dict[str, Any], tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), cluster["address"]]
    # Ray has workers look for modules where the driver runs, and a module of these tests has the name of a package.
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    devices, memory, total = [line for line in ran.stdout.splitlines() if not line.startswith("(")][-3:]
    assert devices in ("on the devices [['0'], ['0']]", "on the devices [['1'], ['1']]"), ran.stdout
    assert memory == f"each sees bytes [{CARD // 4}, {CARD // 4}]", ran.stdout
    assert total == "and a task sums 2000.0", ran.stdout
