"""CloudEvents as deliveries, for inboxes with the default identity."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import msgspec

from oncebox import Delivery


def cloud_event(
    type: str,
    data: Any = None,
    *,
    id: str | None = None,
    key: str | None = None,
    source: str = "test",
    **attributes: Any,
) -> Delivery:
    """A structured CloudEvent with any attributes; its id is random if none is given."""
    envelope = {
        "specversion": "1.0",
        "id": id or str(uuid4()),
        "source": source,
        "type": type,
        "data": data,
        **attributes,
    }
    headers = {"content-type": "application/cloudevents+json"}
    return Delivery(msgspec.json.encode(envelope), headers=headers, key=key)
