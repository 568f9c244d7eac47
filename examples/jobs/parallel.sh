#!/bin/sh
# GNU parallel: eight runs, four at a time, each with a quarter of the card. `divvy run --wait` would take any number of jobs at once.
set -e
program="${1:-train.py}"
seq 1 8 | parallel --jobs 4 --halt now,fail=1 divvy run --memory 25% --compute 25% -- python3 "$program" --seed {}
