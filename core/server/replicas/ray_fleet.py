"""Ray."""


def check_ray() -> None: ...
