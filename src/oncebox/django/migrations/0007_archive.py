from django.db import migrations

from oncebox.django.operations import ApplyMigration


class Migration(migrations.Migration):
    dependencies = [("oncebox", "0006_sequence")]  # noqa: RUF012 - Django's own way
    operations = [ApplyMigration(7)]  # noqa: RUF012 - Django's own way
