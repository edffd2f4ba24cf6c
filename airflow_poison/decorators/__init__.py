"""TaskFlow: ``@task.receive`` and ``@task.send``."""
