"""TLS as a client: a context that checks the server's certificate and name, and what a failure means."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path


def client_context(
    *, ca_file: Path | None, certificate_file: Path | None = None, key_file: Path | None = None
) -> ssl.SSLContext:
    """A context that trusts `ca_file`, the system's authorities where absent, and shows that certificate.

    Raises ValueError naming the file that cannot be read or holds something else.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise ValueError(f"no certificates can be read from {ca_file}: {_reason(error)}") from None
    if certificate_file is not None:
        try:
            # Without a password of its own, OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(certificate_file, key_file, password="")
        except (OSError, ValueError) as error:
            files = " and ".join(str(file) for file in (certificate_file, key_file) if file is not None)
            raise ValueError(f"no certificate and key can be read from {files}: {_reason(error)}") from None
    return context


def tls_problem(error: BaseException) -> str | None:
    """Why TLS failed, as a line for people, where that is the cause of the error; else None."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message.rstrip('.')}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {_reason(cause)}"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += (one.__context__, one.__cause__)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or type(error).__name__).lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
