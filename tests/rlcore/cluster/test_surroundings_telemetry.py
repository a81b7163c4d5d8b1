"""Nothing is sent to a library's makers on any way in; a user's own setting stays."""

from rlcore.cluster.host_settings import OFF, switch_off


def test_every_switch_is_set_unless_the_user_has_set_it() -> None:
    environment = {"RAY_USAGE_STATS_ENABLED": "1", "PATH": "/bin"}
    switch_off(environment)
    assert environment == {**OFF, "RAY_USAGE_STATS_ENABLED": "1", "PATH": "/bin"}
