#!/bin/sh
# torchrun and Accelerate. `launch.sh WHICH PROGRAM`: one of the three below.
set -e
program="${2:-train.py}"
case "$1" in
# All ranks together in one slice of two devices, 8 GiB of each.
one) exec divvy run --device 0,1 --memory 8GiB -- torchrun --nproc-per-node 2 "$program" ;;
# Four ranks on one device, each in a slice of its own.
each) exec torchrun --nproc-per-node 4 --no-python divvy run --memory 25% --compute 25% -- python3 "$program" ;;
# Accelerate starts its ranks inside the slice.
accelerate) exec divvy run --memory 8GiB --compute 50% -- accelerate launch --num_processes 1 "$program" ;;
*) echo "launch.sh one|each|accelerate [PROGRAM]" >&2; exit 2 ;;
esac
