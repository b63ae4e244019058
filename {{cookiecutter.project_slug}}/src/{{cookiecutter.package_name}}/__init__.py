"""{{ cookiecutter.package_name }}: the service. `app.py` wires it, `cli.py` is its command line."""
