"""Secrets of services: made here, shown once, kept as salted hashes.

A secret is 256 random bits, so nobody can try them all and no dictionary helps: one round of SHA-256 with a
salt protects it as well as a slow password hash would, and costs a microsecond at the token endpoint instead
of a tenth of a second that anybody could make us spend.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from .store import SecretRecord

__all__ = ["ROLES", "SERVICE_NAME", "find_secret", "new_secret"]

ROLES = ("worker", "client")
SERVICE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""What a service may be called: it stands in addresses."""


def new_secret(service_id: str, role: str) -> tuple[str, SecretRecord]:
    """A fresh secret, and the record that is kept of it."""
    secret = f"kiwi_{role}_{secrets.token_urlsafe(32)}"
    salt = secrets.token_bytes(16)
    record = SecretRecord(
        secret_id=secrets.token_hex(8),
        service_id=service_id,
        role=role,
        salt=salt,
        digest=_digest(salt, secret),
        created_at=time.time(),
    )
    return secret, record


def find_secret(secret: str, role: str, records: list[SecretRecord]) -> SecretRecord | None:
    """The record that this secret belongs to, compared in constant time."""
    found = None
    for record in records:
        if record.role == role and hmac.compare_digest(_digest(record.salt, secret), record.digest):
            found = record
    return found


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode("utf-8", "surrogatepass")).digest()
