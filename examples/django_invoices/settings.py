"""The settings of a project that has a database and nothing to show."""

import os
from urllib.parse import urlsplit

_url = urlsplit(os.environ["DATABASE_URL"])

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path.removeprefix("/"),
        "USER": _url.username,
        "PASSWORD": _url.password,
        "HOST": _url.hostname,
        "PORT": _url.port,
        "CONN_MAX_AGE": None,  # or every batch would open a connection of its own
    }
}
INSTALLED_APPS = ["oncebox.contrib.django", "invoices"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
