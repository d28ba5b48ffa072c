"""The service: as Django's wsgi.py, it sets Django up before the application is imported."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

from invoices.handlers import inbox  # noqa: E402 - models need Django to be set up

__all__ = ["inbox"]
