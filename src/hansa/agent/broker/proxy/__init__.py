"""The proxy that clients connect to instead of the broker (`[broker] observer = "proxy"`)."""

from hansa.agent.broker.proxy.fallback import make_proxy, run_agent
from hansa.agent.broker.proxy.handover import Handover
from hansa.agent.broker.proxy.server import ProxyServer

__all__ = ["Handover", "ProxyServer", "make_proxy", "run_agent"]
