"""Certificates of a test's own, made on the spot with the openssl program.

An authority, a server, the same server with a certificate that has expired, and a client. The server's names
`localhost` and no address, so that a client that connects to 127.0.0.1 meets the right server under the wrong
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from provision import call

HOST: Final = "localhost"
PACKAGES: Final = {"openssl": "openssl"}
_DAYS: Final = 3_650
"""They stay when the data goes, so they must not expire beside it."""
_EXTENSIONS: Final = "basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files in one folder that only its owner reads: `NAME.crt`, and `NAME.key` in PKCS #8."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate that signed all others."""
        return self.folder / "authority.crt"

    def certificate(self, name: str) -> Path:
        """Of `server`, `expired` or `client`."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """The private key that belongs to it."""
        return self.folder / f"{name}.key"


def issued(folder: Path, *, log: Path) -> Certificates:
    """The certificates in `folder`, made if they are not there yet. Raises ServiceError."""
    made = Certificates(folder)
    if made.certificate("client").exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    subject = ["-subj", "/CN=authority"]
    extensions = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
    new = ["openssl", "req", "-x509", *_key(made, "authority"), *subject, *extensions]
    call([*new, "-days", str(_DAYS), "-out", made.authority], log=log)
    for name, host, days in (("server", HOST, _DAYS), ("expired", HOST, -1), ("client", "client", _DAYS)):
        _issue(made, name, host=host, days=days, log=log)
    return made


def _issue(made: Certificates, name: str, *, host: str, days: int, log: Path) -> None:
    request, extensions = made.folder / f"{name}.csr", made.folder / f"{name}.ext"
    extensions.write_text(f"{_EXTENSIONS}subjectAltName=DNS:{host}\n")
    asking = ["openssl", "req", *_key(made, name), "-subj", f"/CN={name}"]
    call([*asking, "-out", request], log=log)
    signing = ["openssl", "x509", "-req", "-in", request, "-days", str(days), "-extfile", extensions]
    authority = ["-CA", made.authority, "-CAkey", made.key("authority"), "-CAcreateserial"]
    call([*signing, *authority, "-out", made.certificate(name)], log=log)


def _key(made: Certificates, name: str) -> list[str | Path]:
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    return ["-new", *curve, "-nodes", "-keyout", made.key(name)]
