"""Shared access signatures: who may come in."""

import base64
import hashlib
import hmac
import time
from urllib.parse import parse_qs, quote_plus


class Key:
    """The one key of the namespace."""

    def __init__(self, name: str, secret: str) -> None:
        self.name = name
        self.secret = secret

    def accepts(self, token: str) -> bool:
        """Whether the token was signed with this key, and has not run out."""
        kind, _, parameters = token.partition(" ")
        found = {name: values[0] for name, values in parse_qs(parameters).items()}
        if kind != "SharedAccessSignature" or not {"sr", "sig", "se"} <= set(found) or not found["se"].isdecimal():
            return False
        signed = f"{quote_plus(found['sr'])}\n{found['se']}".encode()
        right = base64.b64encode(hmac.new(self.secret.encode(), signed, hashlib.sha256).digest()).decode()
        is_right = hmac.compare_digest(right, found["sig"]) and found.get("skn", self.name) == self.name
        return is_right and int(found["se"]) > time.time()
