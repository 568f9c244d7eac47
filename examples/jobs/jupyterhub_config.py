"""A JupyterHub whose users share one card, each in a slice of 4 GiB. docs/jupyterhub.md."""

c = get_config()  # noqa: F821  # type: ignore[name-defined]

c.JupyterHub.spawner_class = "divvy_jobs.jupyterhub.DivvyLocalProcessSpawner"
c.DivvyLocalProcessSpawner.divvy_memory = "4GiB"
c.DivvyLocalProcessSpawner.divvy_compute = "10%"

# Notebooks that hold memory of the card and have not used it for two hours are stopped. Without --stop they are only told of.
c.JupyterHub.services = [
    {"name": "divvy-cull", "command": ["python3", "-m", "divvy_jobs.cull", "--idle", "2h", "--stop"]},
]
c.JupyterHub.load_roles = [
    {
        "name": "divvy-cull",
        "services": ["divvy-cull"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    },
]
