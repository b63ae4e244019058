"""Answers to render with: what people type, and what breaks careless templates (FAULTS F18)."""

ODD = {
    "project_name": 'Bob\'s "best" \\ shop\\',
    "project_slug": "order-desk_2",
    "package_name": "order_desk_2",
    "description": "Größe & Café #1 <b> 🚚 \"\"\" ''' \\",
    "author_name": 'Zoë "Z" O\'Hara \\',
    "author_email": "zoe.o'hara+shop@mail.example.org",
}
LONGEST = {"project_name": "x" * 300, "project_slug": "a" * 40, "package_name": "o" * 40, "description": "long " * 400}
NOBODY = {"author_name": "", "author_email": ""}
DATABASES = ("sqlite", "postgres", "sqlserver")
TRANSPORTS = ("in_process", "rabbitmq", "azure_service_bus")
COMBINATIONS = {"defaults": {}, "odd": ODD, "longest on postgres": {**LONGEST, "database": "postgres"},
                "nobody": NOBODY, "no name": {"author_name": ""},
                "no email": {"author_email": ""}, "derived": {"project_name": "Émail"},
                **{database: {"database": database} for database in DATABASES[1:]},
                **{f"odd on {database}": {**ODD, "database": database} for database in DATABASES[1:]},
                **{f"odd with {transport}": {**ODD, "transport": transport} for transport in TRANSPORTS[1:]},
                "longest with azure_service_bus": {**LONGEST, "transport": "azure_service_bus"},
                **{f"{database} with {transport}": {"database": database, "transport": transport}
                   for database in DATABASES[1:] for transport in TRANSPORTS[1:]}}  # fmt: skip
EVERY_COMBINATION = {
    "defaults": "by_cookiecutter",
    "odd with rabbitmq": "by_copier",
    "longest with azure_service_bus": "by_copier",
    "longest on postgres": "by_copier",
    "postgres with rabbitmq": "by_cookiecutter",
    "postgres with azure_service_bus": "by_cookiecutter",
    "sqlserver": "by_cookiecutter",
    "sqlserver with rabbitmq": "by_copier",
    "sqlserver with azure_service_bus": "by_copier",
}
"""Every database with every transport, and each of both with either engine."""
