"""Inbox: the application object of oncebox."""

from oncebox.inbox.inbox import Inbox

__all__ = ["Inbox"]
