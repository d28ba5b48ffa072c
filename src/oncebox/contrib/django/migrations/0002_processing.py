from django.db import migrations

from oncebox.contrib.django.operations import ApplyMigration


class Migration(migrations.Migration):
    dependencies = [("oncebox", "0001_claims")]  # noqa: RUF012 - Django's own way
    operations = [ApplyMigration(2)]  # noqa: RUF012 - Django's own way
