"""The wiring: which modules this service is made of."""

from mailroom import Mailroom

from {{ cookiecutter.package_name }} import orders
from {{ cookiecutter.package_name }}.models import Base
from {{ cookiecutter.package_name }}.settings import Settings

metadata = Base.metadata
"""What migrations are compared with; importing a module above is what adds its tables."""


def create_mailroom(settings: Settings | None = None) -> Mailroom:
    """The service's mailroom, from the given settings, or from those that are in force here."""
    return Mailroom(
        settings or Settings.load(),
        handlers=[orders.handlers],
        command="{{ cookiecutter.project_slug }}",
    )
