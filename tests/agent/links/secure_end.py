"""One end of secure links, for tests of both transports."""

from tests.agent.links.listener import RecordingListener

from hansa.agent.links.admission import Admission
from hansa.agent.links.link import Address
from hansa.agent.links.security import LinkSecurity
from hansa.agent.links.tcp import TcpLinks
from hansa.agent.links.udp import UdpLinks


class SecureEnd:
    """Dials and listens with certificates; without security it has none."""

    links: TcpLinks | UdpLinks

    def __init__(self, security: LinkSecurity | None, listener: RecordingListener) -> None:
        self.listener = listener
        self.security = security
        self.refused: list[str] = []
        self.failures: list[str] = []
        self.admission = Admission(security)
        self.admission.on_unauthenticated = lambda remote, reason: self.refused.append(reason)
        self.address = Address("127.0.0.1", 0)

    async def listen(self) -> None:
        self.address = await self.links.listen(self.address)

    def dial(self, address: Address) -> None:
        self.links.dialler.dial(address, lambda _, reason: self.failures.append(reason))

    async def stop(self) -> None:
        await self.links.stop()
        await self.listener.close_links()
