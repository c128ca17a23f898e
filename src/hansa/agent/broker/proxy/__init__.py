"""The proxy that clients connect to instead of the broker (`[broker] observer = "proxy"`)."""

from hansa.agent.broker.proxy.server import ProxyServer

__all__ = ["ProxyServer"]
