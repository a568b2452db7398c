"""The Ed25519 key that signs checkpoints: made once, kept by whoever must not be able to rewrite history unseen."""

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from service.domain.errors import InvalidInput

PUBLIC_SUFFIX = ".pub"


def load_or_make_key(path: Path) -> Ed25519PrivateKey:
    """In PEM, readable by its owner only; the public half beside it, as FILE.pub.

    Raises:
        InvalidInput: a file that is no such key, or that cannot be written.
    """
    try:
        return _make(path) if not path.exists() else _private(path)
    except OSError as error:
        raise InvalidInput(f"The signing key {path} cannot be used: {error.strerror}.", "key") from error


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Raises: InvalidInput: not there, or no such key."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"The public key {path} cannot be read: {error.strerror}.", "public_key"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{path} holds no public key in PEM.", "public_key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput(f"{path} holds no Ed25519 key.", "public_key")
    return key


def _private(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"{path} holds no private key in PEM without a password.", "key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(f"{path} holds no Ed25519 key.", "key")
    return key


def _make(path: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    path.with_name(path.name + PUBLIC_SUFFIX).write_bytes(public)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private)
    return key
