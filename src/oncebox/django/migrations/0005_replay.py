from django.db import migrations

from oncebox.django.operations import ApplyMigration


class Migration(migrations.Migration):
    dependencies = [("oncebox", "0004_retention")]  # noqa: RUF012 - Django's own way
    operations = [ApplyMigration(5)]  # noqa: RUF012 - Django's own way
