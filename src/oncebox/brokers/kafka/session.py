"""State that the classes of the poller thread share."""

from __future__ import annotations

from oncebox.brokers.kafka.admin import TIMEOUT, Cluster
from oncebox.brokers.kafka.assignment import Assignment
from oncebox.brokers.kafka.availability import Availability
from oncebox.brokers.kafka.rejoin import Rejoin
from oncebox.brokers.kafka.settings import Settings
from oncebox.brokers.kafka.throttled_log import ThrottledLog


class Session:
    """A membership in a consumer group: its settings, assignment, brokers and warnings."""

    def __init__(self, settings: Settings, assignment: Assignment, name: str) -> None:
        self.name = name
        self.settings = settings
        self.assignment = assignment
        self.cluster = Cluster(settings)
        self.availability = Availability(settings.session_timeout + TIMEOUT)
        self.rejoin = Rejoin()
        self.log = ThrottledLog(name)
