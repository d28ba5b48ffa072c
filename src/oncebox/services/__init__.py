"""Services: loops around an inbox that run until they are stopped."""

from oncebox.services.consumer import Consumer
from oncebox.services.worker import Worker

__all__ = ["Consumer", "Worker"]
