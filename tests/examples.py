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
TRANSPORTS = ("in_process", "rabbitmq")
COMBINATIONS = {"defaults": {}, "odd": ODD, "longest on postgres": {**LONGEST, "database": "postgres"},
                "nobody": NOBODY, "no name": {"author_name": ""},
                "no email": {"author_email": ""}, "derived": {"project_name": "Émail"},
                **{database: {"database": database} for database in DATABASES[1:]},
                **{f"odd on {database}": {**ODD, "database": database} for database in DATABASES[1:]},
                "odd with rabbitmq": {**ODD, "transport": "rabbitmq"},
                **{f"{database} with rabbitmq": {"database": database, "transport": "rabbitmq"}
                   for database in DATABASES}}  # fmt: skip
EVERY_COMBINATION = {
    "defaults": "by_cookiecutter",
    "odd with rabbitmq": "by_copier",
    "longest on postgres": "by_copier",
    "postgres with rabbitmq": "by_cookiecutter",
    "sqlserver": "by_cookiecutter",
    "sqlserver with rabbitmq": "by_copier",
}
"""Every database with every transport, and each of both with either engine."""
