//! Slices where jobs come from: JupyterHub, pytest-xdist, GNU parallel, make, systemd and launchers, each as its users have it.
//! Slurm's are among the stories.
//!
//! What Python drives is in `python/tests`; a scenario here runs one file of it, on a host of its own.

mod hub;
mod package;
mod plain;
mod python;
mod ray;
