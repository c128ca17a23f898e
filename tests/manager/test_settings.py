import pytest

from hansa.errors import UsageError
from hansa.manager.settings import FederationSettings, make_settings, settings_from_environment


def test_variables_of_the_paper_are_parsed():
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
def test_invalid_variable_is_named(variable, text, said):
    with pytest.raises(UsageError, match=f"{variable} {said}"):
        settings_from_environment({variable: text})


@pytest.mark.parametrize(
    "bad", [{"redundancy": 0}, {"degree_max": 2}, {"health_interval": 0.0}, {"degree_max": 65}]
)
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(UsageError, match=next(iter(bad))):
        make_settings(bad)


def test_unknown_settings_are_ignored():
    assert make_settings({"colour": "red"}) == FederationSettings()
