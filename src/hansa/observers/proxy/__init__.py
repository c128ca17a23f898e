"""An observer for any broker: a proxy that clients connect to instead of the broker.

The proxy forwards all bytes unchanged, in both directions. It reads along, decodes the packets that
open, change and end sessions, and so knows every subscription of its clients exactly:

    scanner.py     finds packets in a stream of bytes and skips those that do not matter
    inspector.py   follows one client connection: CONNECT, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT
    observer.py    the sessions of all clients, and the filters that they are subscribed to

All three are pure; sockets and files are in `hansa.agent.broker.proxy`. Clients that connect to the
broker directly are not seen: close its port to them, or use another observer.
"""
