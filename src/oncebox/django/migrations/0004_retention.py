from django.db import migrations

from oncebox.django.operations import ApplyMigration


class Migration(migrations.Migration):
    dependencies = [("oncebox", "0003_position")]  # noqa: RUF012 - Django's own way
    operations = [ApplyMigration(4)]  # noqa: RUF012 - Django's own way
