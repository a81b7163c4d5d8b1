"""Nothing is sent to a library's makers on any way in; a user's own setting stays."""

from rlcore.cluster.host_settings import OFF, set_variables


def test_every_switch_is_set_unless_the_user_has_set_it() -> None:
    environment = {"RAY_USAGE_STATS_ENABLED": "1", "PATH": "/bin"}
    set_variables(environment)
    meant = {**OFF, "RAY_USAGE_STATS_ENABLED": "1", "PATH": "/bin"}
    assert {name: environment[name] for name in meant} == meant
