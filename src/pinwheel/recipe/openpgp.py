"""Checks OpenPGP signatures of archive indexes against keys shipped as data."""

from __future__ import annotations

from pysequoia import Cert, verify

from pinwheel.errors import ResolveError


def verified_text(signed: bytes, keyring: bytes, *, name: str) -> str:
    """The text inside a clear-signed message, when a key of ``keyring`` signed it.

    Args:
        signed: a message in the cleartext signature framework (RFC 9580, section 7).
        keyring: public keys, one after the other, binary or armored.
        name: what the message is, for the error.

    Raises:
        ResolveError: no good signature by any of the keys.
    """
    try:
        keys = Cert.split_bytes(keyring)
        result = verify(signed, store=lambda _ids: keys)
        if not result.valid_sigs or result.bytes is None:
            raise ValueError("no valid signature")
        return result.bytes.decode()
    except Exception as error:  # pysequoia raises plain Exception
        raise ResolveError(
            f"{name} has no valid signature by a key of the shipped keyring",
            evidence=[str(error)],
            next_step="Use another mirror; if the archive has new keys, update the keyring file.",
        ) from error
