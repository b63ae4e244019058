"""{{ cookiecutter.package_name }}: the service. `app.py` wires it, `orders/` is a sample module."""
