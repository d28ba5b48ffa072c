from django.db import migrations

from oncebox.contrib.django.operations import ApplyMigration


class Migration(migrations.Migration):
    initial = True
    operations = [ApplyMigration(1)]  # noqa: RUF012 - Django's own way
