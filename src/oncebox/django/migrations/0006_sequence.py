from django.db import migrations

from oncebox.django.operations import ApplyMigration


class Migration(migrations.Migration):
    dependencies = [("oncebox", "0005_replay")]  # noqa: RUF012 - Django's own way
    operations = [ApplyMigration(6)]  # noqa: RUF012 - Django's own way
