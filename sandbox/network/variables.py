"""Environment variables that lead the programs in a sandbox to its proxy and its certificates. Pure."""

from __future__ import annotations

from sandbox.guest.protocol.constants import PROXY_PORT

from .policy import Network

# http:// for all variables: some clients (httpx) fail on socks5:// without a further library.
PROXY = f"http://127.0.0.1:{PROXY_PORT}"
# Servers in the sandbox are reached directly, however they are spelled; "sandbox" is its host name.
DIRECT = "localhost,127.0.0.1,::1,0.0.0.0,sandbox,.localhost"
_PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# A refusal is final, and a package manager that retries for minutes would hide it. (pip prints the reason at its one retry.)
_WITHOUT_RETRIES = {
    "PIP_RETRIES": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "UV_HTTP_RETRIES": "0",
    "npm_config_fetch_retries": "0",
    "npm_config_update_notifier": "false",
    "CARGO_NET_RETRY": "0",
}
# For programs that do not use the system's certificates, or accept further ones.
_TRUST_NAMES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
)


def proxy_variables(network: Network) -> dict[str, str]:
    """Return the variables that name the proxy; none with a bridge, which has no proxy."""
    if network.mode == "bridge":
        return {}
    variables = {
        **dict.fromkeys(_PROXY_NAMES, PROXY),
        "no_proxy": DIRECT,
        "NO_PROXY": DIRECT,
        "NODE_USE_ENV_PROXY": "1",
    }
    return variables | (_WITHOUT_RETRIES if network.mode == "none" else {})


def trust_variables(path: str) -> dict[str, str]:
    """Return the variables that make programs trust the certificates in the file ``path`` of the sandbox."""
    return dict.fromkeys(_TRUST_NAMES, path)
