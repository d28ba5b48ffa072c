"""The Django app "oncebox.contrib.django": `manage.py migrate` creates the tables of oncebox."""
