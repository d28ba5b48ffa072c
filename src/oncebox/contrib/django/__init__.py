"""Django app: `manage.py migrate` makes the tables. INSTALLED_APPS: "oncebox.contrib.django"."""
