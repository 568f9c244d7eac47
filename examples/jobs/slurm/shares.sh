#!/bin/sh
#SBATCH --gres=shard:20,divvy_compute:30
# A quarter of the memory, and 30 % of the time.
exec python3 train.py
