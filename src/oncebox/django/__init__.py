"""Django: add "oncebox.django" to INSTALLED_APPS, and `manage.py migrate` makes the tables."""
