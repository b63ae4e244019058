"""A sample module: placing an order reserves stock, through an event. Easy to delete; the README says how."""

from {{ cookiecutter.package_name }}.orders.handlers import handlers

__all__ = ["handlers"]
