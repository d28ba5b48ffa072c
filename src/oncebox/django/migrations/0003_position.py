from django.db import migrations

from oncebox.django.operations import ApplyMigration


class Migration(migrations.Migration):
    dependencies = [("oncebox", "0002_drain")]  # noqa: RUF012 - Django's own way
    operations = [ApplyMigration(3)]  # noqa: RUF012 - Django's own way
