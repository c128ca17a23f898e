"""Who listens to links in tests."""

from hansa.agent.links.link import Link


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.opened: list[Link] = []
        self.frames: list[bytes] = []
        self.closed: list[str] = []
        self.dropped: list[tuple[int, str]] = []

    def link_opened(self, link: Link) -> None:
        self.opened.append(link)

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        self.frames += frames

    def publications_dropped(self, link: Link, count: int, reason: str) -> None:
        self.dropped.append((count, reason))

    def link_closed(self, link: Link, reason: str) -> None:
        self.closed.append(reason)
