#!/bin/sh
#SBATCH --gres=shard:8
#SBATCH --array=1-10
# Ten tasks, each with a tenth of an 80-shard device: memory and time. As many run at once as fit.
exec python3 train.py --seed "$SLURM_ARRAY_TASK_ID"
