"""The artifact store: the output of a stage is complete, verified and traceable, or absent.

Local directories and object stores, tables, leases, and the fingerprint of code.
"""
