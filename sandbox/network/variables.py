"""Environment variables by which the programs in a sandbox find its way out, and whom they are to trust. Pure."""

from __future__ import annotations

from sandbox.guest.protocol.constants import PROXY_PORT

from .policy import Network

# http:// for all of them: some clients (httpx) fail on a socks5:// that they have no library for.
PROXY = f"http://127.0.0.1:{PROXY_PORT}"
# Servers in the sandbox are reached directly, by each way people write them; "sandbox" is its host name.
DIRECT = "localhost,127.0.0.1,::1,0.0.0.0,sandbox,.localhost"
_PROXY_NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# A refusal is final: package managers that try again for minutes would hide it. (pip tells the reason when it tries again, once.)
_AT_ONCE = {
    "PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_HTTP_RETRIES": "0", "npm_config_fetch_retries": "0",
    "npm_config_update_notifier": "false", "CARGO_NET_RETRY": "0",
}  # fmt: skip
# Of programs that look for certificates elsewhere than where the system keeps them, or can be told of more.
_TRUST_NAMES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
)  # fmt: skip


def proxy_variables(network: Network) -> dict[str, str]:
    """What programs are told of the proxy; nothing under a bridge, where there is none."""
    if network.mode == "bridge":
        return {}
    told = {**dict.fromkeys(_PROXY_NAMES, PROXY), "no_proxy": DIRECT, "NO_PROXY": DIRECT, "NODE_USE_ENV_PROXY": "1"}
    return told | (_AT_ONCE if network.mode == "none" else {})


def trust_variables(path: str) -> dict[str, str]:
    """Have programs trust the certificates in the file ``path`` of the sandbox."""
    return dict.fromkeys(_TRUST_NAMES, path)
