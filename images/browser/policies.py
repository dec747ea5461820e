"""Write Chromium's policies: the certificates that the system trusts beside the usual ones, and what no page may open."""

import json
import ssl
from pathlib import Path

ADDED = Path("/usr/local/share/ca-certificates")
POLICIES = Path("/etc/chromium/policies/managed/gamebox.json")

certificates = []
for path in sorted(ADDED.rglob("*.crt")):
    der = ssl.PEM_cert_to_DER_cert(path.read_text())
    certificates.append(ssl.DER_cert_to_PEM_cert(der).split("-----")[2].replace("\n", ""))
POLICIES.parent.mkdir(parents=True, exist_ok=True)
POLICIES.write_text(
    json.dumps(
        {
            "CACertificates": certificates,
            "URLBlocklist": ["file://*", "chrome://*", "view-source:*", "devtools://*"],
            "BackgroundModeEnabled": False,
            "BrowserSignin": 0,
            "ComponentUpdatesEnabled": False,
            "ExtensionInstallBlocklist": ["*"],
            "MetricsReportingEnabled": False,
            "PasswordManagerEnabled": False,
            "SafeBrowsingProtectionLevel": 0,
            "SyncDisabled": True,
            "TranslateEnabled": False,
        },
        indent=1,
    )
)
