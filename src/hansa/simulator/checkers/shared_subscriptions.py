"""Invariant of shared subscriptions: one consumer gets each publication (section 10)."""

from hansa.protocol.topics import matches, split_share
from hansa.simulator.analysis.ground_truth import Component
from hansa.simulator.checkers.publications import UndisturbedPublicationChecker
from hansa.simulator.world.ledger import LedgerEntry


class SharesServedOnce(UndisturbedPublicationChecker):
    """An undisturbed publication is delivered once to every matching share: at the publisher's
    broker if it has a consumer, otherwise at a broker that gets it anyway, otherwise at one other.
    A broker that gets it for a plain subscription also serves its own consumers, which is no
    violation."""

    name = "shares served"

    def check_publication(
        self, entry: LedgerEntry, component: Component, expected_places: tuple[int, ...]
    ) -> None:
        """Find the consumers of each share and those served. The selected one may be at a broker
        that refuses its agent."""
        if not all(site.is_serving_clients for site in component.sites):
            return
        consumers: dict[str, list[int]] = {}
        for site in component.sites:
            for name in site.broker.subscriber_counts:
                group, topic_filter = split_share(name)
                if group is not None and matches(topic_filter, entry.topic):
                    consumers.setdefault(name, []).append(site.place)
        for share, places in consumers.items():
            got = [p for p in places if p == entry.place or p in entry.delivered_at]
            expected_anyway = [p for p in got if p == entry.place or p in expected_places]
            extra_count = len(got) - len(expected_anyway)
            if not got or extra_count > (0 if expected_anyway else 1):
                where = ", ".join(f"n{place}" for place in got) or "nowhere"
                text = f"publication {entry.number} on {entry.topic} from n{entry.place}"
                self.report_violation(f"{text} is served to {share} at {where}, of {places}")
