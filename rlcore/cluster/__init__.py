"""Where workers live. ``types`` is the protocol, ``ray_cluster`` the real one, ``in_process`` runs
inline; ``worker_object`` is the worker's end of both.

A worker is any plain class; the cluster builds it elsewhere and forwards calls. Every wait has a
deadline, and its error names the worker and the method.
"""
