#!/bin/sh
#SBATCH --gres=shard:20
#SBATCH --ntasks=2
# Two steps at once in one slice: what they allocate counts together.
srun --overlap --ntasks=1 python3 serve.py &
srun --overlap --ntasks=1 python3 train.py &
wait
