"""What `hansa doctor` finds out about one broker."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.broker.mosquitto_conf import read_settings
from hansa.agent.broker.settings import RestSettings
from hansa.testbed.probes.advice import BrokerAdvice, Severity
from hansa.testbed.probes.delivery import QUEUE_TRIED_BRIEFLY
from hansa.testbed.probes.examination import Examination, advise_on_examination, examine_broker
from hansa.testbed.probes.makes import Recognition, recognise
from hansa.testbed.probes.mosquitto_conf import add_configured


@dataclass(frozen=True, slots=True)
class BrokerReport:
    address: BrokerAddress
    observer: str
    """How an agent would learn of subscriptions here."""
    recognition: Recognition
    examination: Examination
    advices: tuple[BrokerAdvice, ...]

    @property
    def is_usable(self) -> bool:
        """Whether an agent can work beside this broker."""
        return all(advice.severity is not Severity.ERROR for advice in self.advices)


async def check_broker(
    address: BrokerAddress,
    observer: str,
    log_file: Path | None,
    on_progress: Callable[[str], None],
    *,
    rest: RestSettings | None = None,
    queue_tried: int = QUEUE_TRIED_BRIEFLY,
) -> BrokerReport:
    """Examine a broker; an empty observer is chosen by its make. Raise UsageError if the broker
    does not answer or refuses the client."""
    recognition = await recognise(address, rest)
    observer = observer or recognition.observer
    examination = await examine_broker(
        address, log_file, observer == "mosquitto", queue_tried, on_progress
    )
    advices = (*recognition.advices, *advise_on_examination(examination, observer))
    return BrokerReport(address, observer, recognition, examination, advices)


def add_configuration(report: BrokerReport, file: str) -> BrokerReport:
    """Return a report with what only the broker's mosquitto.conf says."""
    findings = add_configured(report.examination.findings, read_settings(Path(file)))
    examination = replace(report.examination, findings=findings)
    advices = (*report.recognition.advices, *advise_on_examination(examination, report.observer))
    return replace(report, examination=examination, advices=advices)
