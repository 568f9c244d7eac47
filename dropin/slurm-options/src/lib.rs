//! A SPANK plugin: `srun --divvy-memory=4GiB --divvy-compute=30%`, and the same of sbatch and salloc.
//!
//! It is loaded into srun, sbatch, salloc, slurmd and slurmstepd. So it prints by Slurm's functions only, never ends its program,
//! never waits, and asks no other process anything. It reads what was typed and refuses what is no amount. Slurm itself
//! carries the options to the node, where `divvy slurm prolog` judges them against what the job was given. docs/adr/0068.

mod plugin;
mod slurm;
mod typed;
