"""The command line: mailroom's commands, and this service's own."""

from mailroom.cli import create_cli

from {{ cookiecutter.package_name }}.app import create_mailroom
from {{ cookiecutter.package_name }}.orders.demo import demo
from {{ cookiecutter.package_name }}.settings import Settings

main = create_cli("{{ cookiecutter.project_slug }}", settings=Settings.load, mailroom=create_mailroom)
main.command()(demo)
