import pytest

from hansa.errors import UsageError
from hansa.manager.settings import FederationSettings, make_settings, settings_from_environment


def test_the_papers_variables_are_read_as_the_paper_writes_them():
    given = settings_from_environment(
        {
            "CORE_ANN_INTERVAL": "500ms",
            "BEACON_INTERVAL": "1m",
            "FED_REDUNDANCY": "3",
            "TOP_MAX_REDUNDANCY": "5",
            "OTHER": "x",
        }
    )
    assert make_settings(given) == FederationSettings(0.5, 60.0, 3, 5)
    assert settings_from_environment({}) == {}


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("CORE_ANN_INTERVAL", "soon", "must be a time such as 2s or 500ms"),
        ("FED_REDUNDANCY", "two", "must be a whole number"),
    ],
)
def test_what_is_no_value_is_said_with_its_name(variable, text, said):
    with pytest.raises(UsageError, match=f"{variable} {said}"):
        settings_from_environment({variable: text})


@pytest.mark.parametrize(
    "bad", [{"redundancy": 0}, {"degree_max": 2}, {"health_interval": 0.0}, {"degree_max": 65}]
)
def test_what_cannot_work_is_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        make_settings(bad)


def test_settings_of_another_version_do_not_hurt():
    assert make_settings({"colour": "red"}) == FederationSettings()
