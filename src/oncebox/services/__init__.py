"""Services: loops around an inbox, which run until they are told to stop."""

from oncebox.services.consume import Consumer
from oncebox.services.drain import Drainer

__all__ = ["Consumer", "Drainer"]
