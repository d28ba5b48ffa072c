from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012 - Django's own way
        migrations.CreateModel(
            name="Invoice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("order", models.CharField(max_length=20)),
                ("cents", models.IntegerField()),
                ("is_paid", models.BooleanField(default=False)),
            ],
        ),
    ]
