"""Services: loops around an inbox, which run until they are told to stop."""

from oncebox.services.consumer import Consumer
from oncebox.services.worker import Worker

__all__ = ["Consumer", "Worker"]
