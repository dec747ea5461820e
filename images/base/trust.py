"""Add those certificates of the given PEM bundles that the system does not trust yet.

One file each, as update-ca-certificates wants.
"""

import hashlib
import re
import sys
from pathlib import Path

PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
TARGET = Path("/usr/local/share/ca-certificates")


def certificates(text: str) -> dict[str, str]:
    """Certificates by a digest of their content, whatever their line breaks."""
    return {hashlib.sha256("".join(pem.split()).encode()).hexdigest(): pem for pem in PEM.findall(text)}


system = Path("/etc/ssl/certs/ca-certificates.crt")
known = certificates(system.read_text()) if system.exists() else {}
for bundle in filter(Path.is_file, map(Path, sys.argv[1:])):
    for digest, pem in certificates(bundle.read_text(errors="replace")).items():
        if digest not in known:
            TARGET.joinpath(f"host-{digest[:16]}.crt").write_text(pem + "\n")
