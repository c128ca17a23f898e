"""The admin endpoint of an agent of a local federation."""

import json
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

STATUS_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class AdminEndpoint:
    port: int
    certificate: str = ""
    """File with its certificate; plain HTTP if empty."""
    token: str = ""

    @property
    def url(self) -> str:
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    def status(self) -> dict[str, object]:
        """Fetch `/status`; raise OSError if the agent does not answer."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"{self.url}/status", headers=headers)
        tls = ssl.create_default_context(cafile=self.certificate) if self.certificate else None
        with urllib.request.urlopen(request, timeout=STATUS_TIMEOUT_S, context=tls) as response:
            status: dict[str, object] = json.load(response)
            return status


def admin_endpoint(port: int, settings: Mapping[str, str]) -> AdminEndpoint:
    """Return the endpoint that an agent with these environment variables serves."""
    names = ("HANSA_ADMIN_READ_TOKEN", "HANSA_ADMIN_OPERATE_TOKEN", "HANSA_ADMIN_TOKEN")
    token = next(filter(None, (settings.get(name) for name in names)), "")
    return AdminEndpoint(port, settings.get("HANSA_ADMIN_TLS_CERTIFICATE", ""), token)
