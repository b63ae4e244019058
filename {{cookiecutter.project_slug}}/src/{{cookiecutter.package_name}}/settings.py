"""What this service can be configured with: mailroom's settings, and its own beside them."""

from mailroom import Settings as MailroomSettings


class Settings(MailroomSettings):
    """Add sections of your own here; they are read from the same sources, and checked in the same way."""
